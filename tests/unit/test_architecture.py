"""docs/architecture.md is true: each package has a row, each file that it names exists, each of its terms is in use."""

from __future__ import annotations

import ast
import re
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


def names_in(path: Path, text: str) -> set[str]:
    """The words of each name in a module: of its folders and itself, a class, function, argument or variable."""
    found = list(path.relative_to(LIBRARY).with_suffix("").parts)
    for node in ast.walk(ast.parse(text)):
        found += [getattr(node, kind) for kind in ("name", "arg", "id", "attr") if hasattr(node, kind)]
    spaced = (re.sub(r"([A-Z]+)", r" \1", str(name)).lower() for name in found if name)
    return {word for name in spaced for word in re.findall(r"[a-z]+", name)}


def test_each_package_has_one_row():
    assert sorted(row[0] for row in rows("Packages")) == sorted(packages())


def test_each_file_and_folder_that_the_page_names_exists():
    places = (LIBRARY, ROOT)
    named = [name for name in NAMED.findall(PAGE) if name != "clusterfn/"]

    assert len(named) > 80
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_each_term_of_the_glossary_is_a_name_in_the_code():
    terms = [row[0] for row in rows("Glossary")]
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(LIBRARY.rglob("*.py"))}

    assert 1 <= len(terms) <= 15
    for term in terms:  # the first modules with the word mostly have it as a name
        assert any(term in names_in(path, text) for path, text in texts.items() if term in text.lower()), term
