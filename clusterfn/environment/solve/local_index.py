"""Serve wheels in local folders as a package index, because pip accepts file:// indexes and --find-links.

conda-lock's resolver of wheels speaks only http. `serve_local_indexes` answers addresses below ADDRESS in this process,
without a socket; `program` then writes the files' own addresses into the lock. Nothing is unpacked: a wheel's METADATA
is read out of it (PEP 658), and a file is hashed only when it is asked for.
"""

from __future__ import annotations

import hashlib
import html
import io
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit
from urllib.request import url2pathname

ADDRESS = "http://shelf.clusterfn.invalid"
_FILES = f"{ADDRESS}/file"
_ARCHIVES = (".whl", ".tar.gz", ".zip")


@dataclass
class Anchor:
    """One link of an index's page."""

    href: str
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The project that the file belongs to, as indexes write it."""
        file = unquote(urlsplit(self.href).path).rpartition("/")[2]
        return normalize_name(file.split("-")[0] if file.endswith(".whl") else file.rpartition("-")[0])


class _Page(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__()
        self.base = base
        self.anchors: list[Anchor] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "a" and found.get("href"):
            href = urljoin(self.base, found.pop("href"))
            kept = {name: value for name, value in found.items() if name in ("data-requires-python", "data-yanked")}
            self.anchors.append(Anchor(href, kept))


def normalize_name(name: str) -> str:
    """Normalize a project's name as indexes do."""
    return re.sub(r"[-_.]+", "-", name).lower()


def own_address(url: str) -> str:
    """Return the file:// address of a local file that was found here; others stay as they are."""
    return "file://" + url[len(_FILES) :] if url.startswith(_FILES) else url


def index_address(number: int) -> str:
    """Return the address of the index for the place of that number."""
    return f"{ADDRESS}/index/{number}"


def _read(text: str, base: str) -> list[Anchor]:
    page = _Page(base)
    page.feed(text)
    return page.anchors


def _path(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path)) if url.startswith("file:") else Path(url).expanduser()


def _files_in(folder: Path) -> list[Anchor]:
    files = sorted(path for path in folder.iterdir() if path.name.endswith(_ARCHIVES)) if folder.is_dir() else []
    return [Anchor(path.absolute().as_uri()) for path in files]


@dataclass(frozen=True)
class Index:
    """An index in a folder: a folder for each project, with a page or with the files themselves."""

    url: str

    def anchors(self, project: str) -> list[Anchor]:
        folder = _path(self.url) / project
        page = folder / "index.html"
        if page.is_file():
            return _read(page.read_text(encoding="utf-8", errors="replace"), page.absolute().as_uri())
        return _files_in(folder)


@dataclass(frozen=True)
class Links:
    """What --find-links names: a folder, or a page of links to files of any project."""

    place: str

    def anchors(self, project: str) -> list[Anchor]:
        if self.place.startswith(("http://", "https://")):
            import requests

            answer = requests.get(self.place, timeout=60)
            answer.raise_for_status()
            found = _read(answer.text, answer.url)
        else:
            path = _path(self.place)
            if path.is_file():
                found = _read(path.read_text(encoding="utf-8", errors="replace"), path.absolute().as_uri())
            else:
                found = _files_in(path)
        return [anchor for anchor in found if anchor.name == project]


class LocalIndexes:
    """Local folders and pages, by number, as the pages and files of an index."""

    def __init__(self, places: Sequence[Index | Links]) -> None:
        self.places = places
        self._hashes: dict[Path, str] = {}

    def content(self, url: str) -> bytes | None:
        """Return the content at an address below ADDRESS; None if there is none."""
        path = unquote(urlsplit(url).path)
        if url.startswith(_FILES):
            return self._file(path[len("/file") :])
        _, _, number, project = path.rstrip("/").split("/", 3)
        lines = list(self._lines(self.places[int(number)], normalize_name(project)))
        return f"<!DOCTYPE html><html><body>{''.join(lines)}</body></html>".encode() if lines else None

    def _lines(self, place: Index | Links, project: str) -> Iterator[str]:
        for anchor in place.anchors(project):
            href = anchor.href
            attributes = dict(anchor.attributes)
            if href.startswith("file:"):
                path = _path(urldefrag(href).url)
                if not path.is_file():
                    continue
                kind, _, sha256 = urldefrag(href).fragment.partition("=")
                if kind != "sha256":
                    if path not in self._hashes:
                        self._hashes[path] = hashlib.sha256(path.read_bytes()).hexdigest()
                    sha256 = self._hashes[path]
                href = f"{_FILES}{quote(urlsplit(path.as_uri()).path, safe='/%')}#sha256={sha256}"
                attributes |= {"data-core-metadata": "true"} if path.suffix == ".whl" else {}
            rest = "".join(f' {name}="{html.escape(value)}"' for name, value in attributes.items())
            yield f'<a href="{html.escape(href)}"{rest}>{html.escape(anchor.name)}</a>'

    def _file(self, name: str) -> bytes | None:
        path = Path(url2pathname(name))
        if path.is_file():
            return path.read_bytes()
        wheel = path.with_suffix("")
        if path.suffix != ".metadata" or not wheel.is_file():
            return None
        with zipfile.ZipFile(wheel) as archive:
            metadata = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            return archive.read(metadata)


def serve_local_indexes(
    indexes: LocalIndexes, on_request: Callable[[str, str], None] = lambda file, server: None
) -> None:
    """Let every session of requests in this process find the local indexes; call `on_request` for other servers."""
    import requests
    from requests.adapters import BaseAdapter

    class Adapter(BaseAdapter):  # type: ignore[misc]
        def send(self, request: Any, **_: Any) -> requests.Response:
            content = indexes.content(request.url)
            answer = requests.Response()
            answer.status_code = 404 if content is None else 200
            answer.raw = io.BytesIO(content or b"")
            answer.url, answer.request, answer.encoding = request.url, request, "utf-8"
            answer.headers["Content-Length"] = str(len(content or b""))
            return answer

        def close(self) -> None:
            """There is nothing to close."""

    usual = requests.Session.get_adapter
    ours = Adapter()

    def get_adapter(session: requests.Session, url: str) -> Any:
        if url.startswith(ADDRESS):
            return ours
        parts = urlsplit(url)
        on_request(unquote(parts.path.rstrip("/").rpartition("/")[2]), parts.hostname or "")
        return usual(session, url)

    requests.Session.get_adapter = get_adapter
