"""docs/architecture.md is true: each package has a row, each file that it names exists, each of its terms is in use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "clusterfn"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`((?:[a-z_]+/)*(?:[A-Za-z_]+\.(?:py|md))|(?:[a-z_]+/)+)`")


def rows(title: str) -> list[list[str]]:
    """The cells of the table in a section, without its head."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]


def packages() -> set[str]:
    folders = {path.parent.relative_to(LIBRARY).as_posix() for path in LIBRARY.rglob("*.py")}
    return {"`clusterfn/`" if folder == "." else f"`{folder}/`" for folder in folders}


def names() -> Iterator[str]:
    """The words of each name in the library: of a folder, module, class, function, argument or variable."""
    for path in LIBRARY.rglob("*.py"):
        found = list(path.relative_to(LIBRARY).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found += [getattr(node, kind) for kind in ("name", "arg", "id", "attr") if hasattr(node, kind)]
        for name in filter(None, found):
            yield from re.findall(r"[a-z]+", re.sub(r"([A-Z]+)", r" \1", str(name)).lower())


def test_each_package_has_one_row():
    assert sorted(row[0] for row in rows("Packages")) == sorted(packages())


def test_each_file_and_folder_that_the_page_names_exists():
    places = (LIBRARY, ROOT)
    named = [name for name in NAMED.findall(PAGE) if name != "clusterfn/"]

    assert len(named) > 80
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_each_term_of_the_glossary_is_a_name_in_the_code():
    terms = [row[0] for row in rows("Glossary")]

    assert 1 <= len(terms) <= 15
    assert sorted(set(terms) - set(names())) == []
