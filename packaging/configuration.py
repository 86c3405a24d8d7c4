"""`python packaging/configuration.py`: write what docs/reference says of the keys of clusterfn.yml, from their table.

That is the tables of configuration.md, clusterfn.schema.json, and the table of notes in notes.md.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from pathlib import Path

from clusterfn.config import keys
from clusterfn.config.notes import NOTES
from clusterfn.config.value_kinds import Key

REFERENCE = Path(__file__).parents[1] / "docs/reference"
PAGE, SCHEMA, NOTES_PAGE = (REFERENCE / name for name in ("configuration.md", "clusterfn.schema.json", "notes.md"))
TABLES = {
    "## Keys of the file": keys.FILE_KEYS,
    "## Keys of a host": keys.HOST_KEYS,
    "## `defaults`": keys.DEFAULT_KEYS,
}


def with_tables(page: str) -> str:
    """Return the page with the first table below each heading as the code has it."""
    for heading, table in TABLES.items():
        before, found, section = page.partition(f"\n{heading}\n\n")
        if not found:
            raise ValueError(f"{PAGE} has no heading {heading}")
        page = before + found + rows(table) + section[section.index("\n\n") :]
    return page


def with_notes(page: str) -> str:
    """Return the page of notes with its table, which is its end, as the code has it."""
    lines = ["| id | when | what clusterfn says | hidden by quiet mode |", "|---|---|---|---|"]
    for note in NOTES.values():
        parts = string.Formatter().parse(": ".join(filter(None, (note.text, note.hint))))
        said = "".join(text + ("" if place is None else "…") for text, place, *_ in parts)
        lines.append(f"| `{note.id}` | {note.when} | `{said}` | {'yes' if note.is_progress else 'no'} |")
    return page.partition("\n## The notes\n\n")[0] + "\n## The notes\n\n" + "\n".join(lines) + "\n"


def rows(table: Mapping[str, Key]) -> str:
    """Return a table in Markdown, without a newline at its end."""
    has_examples = any(key.example for key in table.values())
    lines = [["key", "default", *(["example"] if has_examples else []), "meaning"]]
    lines += [["---"] * len(lines[0])]
    for word, (_, _, default, example, meaning) in table.items():
        shown = [f"`{example}`"] if has_examples else []
        lines.append([f"`{word}`", default, *shown, meaning.replace("|", "\\|")])
    return "\n".join("|---" * len(line) + "|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    NOTES_PAGE.write_text(with_notes(NOTES_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    SCHEMA.write_text(f"{json.dumps(keys.file_schema(), indent=2)}\n", encoding="utf-8")
