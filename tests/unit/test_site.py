"""`make docs`: each page is on the site, links and search work, and nothing is loaded from another server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"?([^\s\">]+)|<link[^>]*\shref=\"?([^\s\">]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    pytest.importorskip("material", reason="mkdocs-material is not installed: run make docs once")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.long
def test_every_page_is_on_the_site_and_search_finds_it_unless_it_is_a_decision(site: Path) -> None:
    found = {entry["location"] for entry in json.loads((site / "search/search_index.json").read_text())["docs"]}
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    decisions = {page for page in pages if page.startswith("decisions/")}

    assert (pages - decisions) | {"documents.html", "changelog.html", "contributing.html"} <= found
    assert [location for location in found if location.startswith("decisions/")] == []
    assert all((site / page).is_file() for page in decisions)
    assert (site / "files/examples/frameworks.py").is_file()


@pytest.mark.long
def test_the_table_of_compatibility_has_each_row_and_a_filter_on_the_site_and_is_not_searched(site: Path) -> None:
    page = (site / "explanation/compatibility.html").read_text(encoding="utf-8")
    rows = (ROOT / "docs/explanation/compatibility.csv").read_text(encoding="utf-8").splitlines()[1:]
    searched = (site / "search/search_index.json").read_text(encoding="utf-8")

    assert page.count("<tr><td>") >= len(rows) > 1000
    assert "type='search'" in page or 'type="search"' in page or "type=search" in page
    assert "distutils.ccompiler.CCompilerError" in page
    assert "distutils.ccompiler.CCompilerError" not in searched


@pytest.mark.long
def test_every_link_of_the_site_leads_to_a_file_of_it(site: Path) -> None:
    missing = []
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in re.findall(r"<a [^>]*href=\"?([^\s\">#]+)", page.read_text(encoding="utf-8")):
            if "://" not in link and not (page.parent / link).exists():
                missing.append((page.relative_to(site).as_posix(), link))

    assert missing == []


@pytest.mark.long
def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    loaded = {
        one or other for page in site.rglob("*.html") for one, other in LOADED.findall(page.read_text(encoding="utf-8"))
    }
    styles = "".join(page.read_text(encoding="utf-8") for page in site.rglob("*.css"))

    assert loaded
    assert [address for address in loaded if "//" in address] == []
    assert re.findall(r"url\([\"']?(?:https?:)?//|@import", styles) == []
