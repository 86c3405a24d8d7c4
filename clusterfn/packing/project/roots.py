"""Where a project's modules are imported from, its console scripts, and its metadata: as files say, nothing is run."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clusterfn.errors import ConfigError
from clusterfn.packing.project.listing import holds_code

_METADATA = ("METADATA", "PKG-INFO", "entry_points.txt", "top_level.txt")
_SCRIPT = re.compile(r"""(?:^|["'])\s*([\w.-]+)\s*=\s*([\w.]+:[\w.]+)""", re.MULTILINE)


class InstalledProject(NamedTuple):
    """A project that is installed here: its metadata, its folder if editable, the one it came from, its names."""

    metadata: Path
    folder: str
    origin: str
    top_level: frozenset[str]


def metadata_of(places: Mapping[str, str]) -> Iterator[Path]:
    """Yield the metadata of the projects of these files, by top-level names: packages read their version from it."""
    real = {name: os.path.realpath(path) for name, path in places.items()}
    for distribution in installed() if places else ():
        folder = distribution.folder
        beneath = folder and any(place.startswith(folder + os.sep) for place in real.values())
        if beneath or not distribution.top_level.isdisjoint(real):
            yield from metadata_files(distribution)


def metadata_files(project: InstalledProject) -> list[Path]:
    """Return those files of its metadata that programs read."""
    return [path for path in (project.metadata / name for name in _METADATA) if path.is_file()]


def installed() -> list[InstalledProject]:
    """List the projects with metadata on the path of imports."""
    folders = [folder or os.curdir for folder in sys.path if os.path.isdir(folder or os.curdir)]
    return _installed(tuple((folder, os.stat(folder).st_mtime_ns) for folder in folders))


@functools.lru_cache(maxsize=4)
def _installed(folders: tuple[tuple[str, int], ...]) -> list[InstalledProject]:
    projects = []
    for folder, _ in folders:
        for path in sorted(Path(folder).glob("*.*-info")):
            top_level = frozenset(_text(path / "top_level.txt").split())
            projects.append(InstalledProject(path, *_origin(_text(path / "direct_url.json")), top_level))
    return projects


def _origin(direct_url: str) -> tuple[str, str]:
    """Return the folder of an editable installation, or "", and that of any that came from a folder (PEP 610)."""
    # Another installer may write the file in another way.
    with contextlib.suppress(ValueError, KeyError, AttributeError):
        origin = json.loads(direct_url or "{}")
        if "dir_info" in origin:
            path = urllib.parse.unquote(urllib.parse.urlsplit(origin["url"]).path)
            folder = path.lstrip("/") if os.name == "nt" else path
            return os.path.realpath(folder) if origin["dir_info"].get("editable") else "", folder
    return "", ""


def _text(path: Path) -> str:
    # Most projects have no such file.
    with contextlib.suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return ""


class Declared(NamedTuple):
    """A project's folders of modules, below its own: `src` or itself; and the console scripts that its files name."""

    roots: tuple[str, ...] = ()
    scripts: Mapping[str, str] = {}


def declared(folder: str) -> Declared:
    """Return this for a folder with pyproject.toml, setup.cfg or setup.py; nothing if it is no project to install."""
    # Jobs have no such module, and functions need none.
    from clusterfn.environment.project import PYPROJECT, load_toml

    tree: dict[str, Any] = {}
    # Whoever builds an environment from it says what is wrong with the file.
    with contextlib.suppress(ConfigError):
        tree = load_toml(Path(folder, PYPROJECT))
    setup, code = _text(Path(folder, "setup.cfg")), _text(Path(folder, "setup.py"))
    poetry = tree.get("tool", {}).get("poetry", {})
    if not (code or "project" in tree or "build-system" in tree or poetry or "[options]" in setup):
        return Declared()
    scripts = dict(_SCRIPT.findall(f"{code}\n{setup}"))
    for table in (poetry, tree.get("project", {})):
        scripts.update((name, str(target)) for name, target in table.get("scripts", {}).items())
    src = os.path.join(folder, "src")
    # Some projects have a package that is called src.
    is_package = os.path.exists(os.path.join(src, "__init__.py")) or not holds_code(src)
    return Declared(("",) if is_package else ("src",), scripts)
