"""The texts that clusterfn shows keep to the words of CONTRIBUTING.md: what a literal may not say, and what instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Not this -> but this. Whole words; CONTRIBUTING.md has sentences that use them.
WORDS = {
    r"cards?": "GPU",
    r"anew": "again",
    r"aloud": "with a message",
    r"whoever|nobody": "the user, no one; or say who",
    r"travel(?:s|led|ling)?": "is sent",
    r"(?:is|are|was|were) told": "clusterfn says, or you see",
    r"(?:goes|go|going|went) on": "keeps running, or resumes",
    r"let(?:s|ting)? go": "detaches, releases, or ends",
    r"lies|lie|stands?": "is",
    r"mend(?:s|ed|ing)?": "fix, or repair",
    r"tried again": "retried",
    r"held back": "held",
    r"left no word": "left no result",
}  # fmt: skip
PATTERN = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)

# What may stay: a part of the text -> why.
RIGHT = {"@cluster goes on a function": "it is put on it"}


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the string literals of more than one word that are not docstrings, with their lines."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from [(node.lineno, node.value)] if " " in node.value.strip() else []


def wrong(source: str) -> list[tuple[int, str]]:
    if not PATTERN.search(source):
        return []
    return [
        (line, f"{found[0]!r} in {text!r}")
        for line, text in texts(source)
        if (found := PATTERN.search(text)) and not any(part in text for part in RIGHT)
    ]


def test_no_text_of_the_code_uses_a_word_that_contributing_rejects():
    sources = {path: path.read_text("utf-8") for path in (ROOT / "clusterfn").rglob("*.py")}
    found = [f"{path}:{line}: {what}" for path, source in sources.items() for line, what in wrong(source)]
    assert found == [], "\n".join(found)
    unused = [part for part in RIGHT if not any(part in source for source in sources.values())]
    assert unused == [], "exceptions that nothing needs"


@pytest.mark.parametrize(
    "source",
    [
        'f("no card is free")',
        'f(f"{x} goes on there")',
        'x = "the job" " was tried again"',
        'raise E("%s lies there" % x)',
    ],
)
def test_a_rejected_word_is_found_wherever_it_is_written(source: str):
    assert len(wrong(source)) == 1


def test_names_docstrings_and_longer_words_are_no_texts():
    assert wrong('def f(card):\n    """Return the card."""\n    return {"card": card, "x": "a cardboard box"}\n') == []
