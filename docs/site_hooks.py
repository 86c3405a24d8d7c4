"""What `make docs` adds to ProperDocs: the navigation of index.md, and the files of the repository to which pages link.

The site begins with README.md. The links in the pages are those of the repository, where people read the same pages.
On the site, a link to a file outside docs/ leads to a copy of that file.
"""

from __future__ import annotations

import csv
import html
import os
import re
from pathlib import Path
from typing import Any

from properdocs.config.defaults import ProperDocsConfig
from properdocs.structure.files import File, Files
from properdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
DECISIONS = "decisions/index.md"
# Files whose place on the site is another one than in the repository
PLACES = {
    ROOT / "README.md": "index.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "SECURITY.md": "security.md",
    DOCS / "index.md": "documents.md",
    DOCS / "decisions": DECISIONS,
}
SEARCHED_LAST = (
    *("architecture.md", "changelog.md", "contributing.md", "documents.md", "upstream.md"),
    *("explanation/slurm-sites.md", "explanation/threats.md", "explanation/verified.md"),
    *("reference/builder.md", "reference/job-directory.md", "reference/protocol.md", "reference/versioning.md"),
)
FILTER = (
    'for (const row of document.querySelectorAll("#rows tbody tr"))'
    " row.hidden = !row.textContent.toLowerCase().includes(this.value.toLowerCase())"
)
LINK = re.compile(r"(\]\()([^)#\s]+)([^)]*\))")
ENTRY = re.compile(r"^## (.+)$|^- \[(.+?)\]\(([^)#]+)\)", re.MULTILINE)


def on_config(config: ProperDocsConfig) -> ProperDocsConfig:
    """Take the navigation from the lists of index.md, with the titles that it gives to the pages."""
    nav: list[Any] = [{"clusterfn": "index.md"}, {"All documents": "documents.md"}, {"Tutorial": "tutorial.md"}]
    for section, title, link in ENTRY.findall((DOCS / "index.md").read_text(encoding="utf-8")):
        if section:
            nav.append({section: []})
        else:
            next(iter(nav[-1].values())).append({title.replace("`", ""): site_path(DOCS / link)})
    last = [{"Decisions": DECISIONS}, {"Changes": "changelog.md"}, {"Contributing": "contributing.md"}]
    config.nav = [*nav, *last, {"Security": "security.md"}]
    return config


def on_files(files: Files, config: ProperDocsConfig) -> Files:
    """Add the list of decisions, and each file of the repository to which a page links."""
    decisions = sorted((DOCS / "decisions").glob("*.md"))
    rows = [
        f"- [{page.read_text(encoding='utf-8').partition(chr(10))[0].lstrip('# ')}]({page.name})" for page in decisions
    ]
    files.append(File.generated(config, DECISIONS, content="\n".join(["# Decisions", "", *rows, ""])))
    if own := files.get_file_from_path("index.md"):
        files.remove(own)
    waiting = {path for path in PLACES if path.is_file()}
    waiting |= {path for page in DOCS.rglob("*.md") for path in linked_outside(page)}
    while waiting:
        path = waiting.pop()
        if files.get_file_from_path(site_path(path)) is None:
            files.append(File.generated(config, site_path(path), abs_src_path=str(path)))
            waiting |= linked_outside(path) if path.suffix == ".md" else set()
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to files outside of docs/, and those of such files, to their places on the site.

    The search does not read decisions and records of measurements. Guides answer what people type, so they come first;
    the pages for those who change clusterfn come last.
    """
    source = Path(page.file.abs_src_path or DOCS / DECISIONS)
    folder = Path(page.file.src_uri).parent
    if folder.parts[:1] in (("decisions",), ("files",)):
        page.meta["search"] = {"exclude": True}
    elif folder.name == "how-to" or page.file.src_uri == "explanation/faq.md":
        page.meta["search"] = {"boost": 3}
    elif page.file.src_uri in SEARCHED_LAST:
        page.meta["search"] = {"boost": 0.2}

    def moved(found: re.Match[str]) -> str:
        target = (source.parent / found[2]).resolve()
        if "://" in found[2] or not target.exists():
            return found[0]
        return found[1] + Path(os.path.relpath(site_path(target), folder)).as_posix() + found[3]

    return LINK.sub(moved, markdown)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Put the rows of a page's table, a CSV file of its name, into `<div id=NAME>`, with a field that filters them.

    The rows come after the search has read the page: a thousand names would stand before the guides.
    """
    table = Path(page.file.abs_src_path or DOCS).with_suffix(".csv")
    place = f'<div id="{table.stem}"></div>'
    if place not in output or not table.is_file():
        return output
    with table.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    return output.replace(
        place,
        f"<p><input id='filter' type='search' placeholder='a package or class, such as torch' oninput='{FILTER}'></p>"
        f"<table id='rows'><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead>"
        f"<tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>",
    )


def linked_outside(page: Path) -> set[Path]:
    """The files of the repository, outside of docs/, to which this page links."""
    targets = ((page.parent / link).resolve() for _, link, _ in LINK.findall(page.read_text(encoding="utf-8")))
    return {path for path in targets if path.is_file() and ROOT in path.parents and DOCS not in path.parents}


def site_path(path: Path) -> str:
    """The place of a file of the repository on the site."""
    path = path.resolve()
    if path in PLACES:
        return PLACES[path]
    if DOCS in path.parents:
        return path.relative_to(DOCS).as_posix()
    return f"files/{path.relative_to(ROOT).as_posix()}"
