"""The user's own packages that a project or a line of requirements names: what they want, and what they are built of.

A lock is out of date when one of them wants something else.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterfn.environment.project import PYPROJECT, REQUIREMENTS, load_toml

EXTRAS = re.compile(r"\[([^\]]*)\]$")
# Of a local package's [project]. A new version of it changes nothing of what it depends on.
_WANTS = ("name", "requires-python", "dependencies", "optional-dependencies", "dynamic")


def local_packages(folder: Path, uv: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the project's local packages want, by their folder, and those of theirs: the lock depends on it."""
    found: dict[str, Any] = {}
    seen: set[Path] = set()
    waiting = [(folder, uv)]
    while waiting:
        above, settings = waiting.pop()
        sources = [each for _, each in source_tables(settings.get("sources") or {})]
        places = [above / Path(str(each["path"])).expanduser() for each in sources if "path" in each]
        if "workspace" in settings or any(each.get("workspace") for each in sources):
            places += _workspace(above)[1]
        for place in places:
            if place.resolve() in seen:
                continue
            seen.add(place.resolve())
            if place.is_file():
                found[relative_path(place, folder)] = {"project": {}, "uv": {}, "built": digest_of_archive(place)}
            if place.is_dir():
                file = place / PYPROJECT
                tree = load_toml(file) if file.is_file() else {}
                theirs, project = tree.get("tool", {}).get("uv", {}), tree.get("project", {})
                wants = {key: project[key] for key in _WANTS if key in project}
                found[relative_path(place, folder)] = {"project": wants, "uv": theirs, "built": digests(place, tree)}
                waiting.append((place, theirs))
    return found


def workspace_root(folder: Path) -> Path:
    """Return the folder whose [tool.uv] counts for a project: that of its workspace if it is a member, else its own."""
    root, *lists = _workspace(folder)
    members, excluded = ({each.resolve() for each in places} for places in lists)
    return root if folder.resolve() in members - excluded else folder


def _workspace(folder: Path) -> tuple[Path, list[Path], list[Path]]:
    """Return the nearest workspace from a folder upwards, and the folders that are its members and that it excludes."""
    for root in [folder, *folder.resolve().parents]:
        file = root / PYPROJECT
        table = load_toml(file).get("tool", {}).get("uv", {}).get("workspace", {}) if file.is_file() else {}
        if table:
            members, excluded = (
                {each for pattern in table.get(key, []) for each in root.glob(str(pattern)) if each.is_dir()}
                for key in ("members", "exclude")
            )
            return root, sorted(members), sorted(excluded)
    return folder, [], []


def source_tables(sources: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where uv takes each package from: (name, table), as one may have several tables."""
    for name, given in sources.items():
        yield from ((name, each) for each in (given if isinstance(given, list) else [given]) if isinstance(each, dict))


def digests(folder: Path, pyproject: Mapping[str, Any]) -> dict[str, str]:
    """Return hashes of the files in which a build backend may find dependencies."""
    names = ["setup.py", "setup.cfg", REQUIREMENTS]
    dynamic = pyproject.get("tool", {}).get("setuptools", {}).get("dynamic", {})
    tables = [dynamic.get("dependencies", {}), *dynamic.get("optional-dependencies", {}).values()]
    for given in (table.get("file", []) for table in tables):
        names += [given] if isinstance(given, str) else given
    return {name: digest((folder / name).read_bytes()) for name in names if (folder / name).is_file()}


def digest(data: bytes) -> str:
    """Return a hash of a text that git may check out with other line endings."""
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()


def digest_of_archive(path: Path) -> str:
    """Return the SHA-256 of a wheel, which may be built again with the same version; "" if it is no file."""
    try:
        now = path.stat()
        return _digest_at(path, now.st_mtime_ns, now.st_size)
    except OSError:
        return ""


@functools.lru_cache(maxsize=64)
def _digest_at(path: Path, mtime_ns: int, size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def relative_path(path: Path, folder: Path) -> str:
    # A line such as `-e .[train]` has extras behind the path.
    bare = EXTRAS.sub("", str(path))
    extras = str(path)[len(bare) :]
    try:
        return Path(os.path.relpath(bare, folder)).as_posix() + extras
    except ValueError:
        # On Windows, no relative path leads to another drive.
        return Path(bare).absolute().as_posix() + extras
