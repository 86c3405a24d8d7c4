"""A project's own file of dependencies, as one value: pyproject.toml, uv.lock, pylock.toml or requirements.txt.

`environment_files` reads it, `wheels` finds its wheels with uv. Here is also what all readers of such files need: TOML,
names and versions as pip compares them, and the user's own packages that a project or a line of requirements names. A
lock is out of date when one of those wants something else.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from clusterfn.config.environment_kinds import header_of_script
from clusterfn.config.yamlfile import read_text
from clusterfn.errors import ConfigError

PYPROJECT, UV_LOCK, PYLOCK, REQUIREMENTS = "pyproject.toml", "uv.lock", "pylock.toml", "requirements.txt"
# A script with a header of PEP 723, and what its lock has behind the name.
SCRIPT = "script"
LOCK_OF_SCRIPT = ".lock"
GIT = "git+"  # before the address of a repository
PIP_LINES = "pip"  # lines of a `pip:` section or of packages=
_GROUP = "group:"
# No minor version of PyTorch or Python has had as many patches.
_PATCHES = 30
Version = tuple[int, ...]
# The name of a project, an extra or a group as indexes write it.
normalize: Callable[[str], str] = canonicalize_name


@dataclass(frozen=True)
class ProjectFile:
    """A file that uv understands, and what the user chose in it.

    Attributes:
        kind: One of the names above.
        extras, groups: Of its optional dependencies, and of its dependency groups.
        requires_python: Such as ">=3.10"; "" for any.
        hashes: The SHA-256 that the user allows for each project; without any, none is compared.
        indexes: (name, address) of the package indexes that it names; uv has variables with their passwords. Of a
            package or a repository in uv's settings the address alone.
        is_dynamic: Whether its own build backend says what it depends on.
        lines: The lines that pip would read.
    """

    kind: str
    path: Path
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    requires_python: str = ""
    hashes: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    indexes: tuple[tuple[str, str], ...] = ()
    is_dynamic: bool = False
    lines: tuple[str, ...] = ()

    @property
    def is_locked(self) -> bool:
        """Whether its versions are fixed, so that only wheels are chosen."""
        return self.kind in (UV_LOCK, PYLOCK)


def split_parts(parts: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split what is in brackets, "gpu" and "group:dev", into extras and groups, sorted and normalized."""
    extras = {normalize(part) for part in parts if not part.startswith(_GROUP)}
    groups = {normalize(part[len(_GROUP) :].strip()) for part in parts if part.startswith(_GROUP)}
    return tuple(sorted(extras)), tuple(sorted(groups))


def version(text: str) -> Version:
    """Return a version as numbers, without suffixes: (2, 7, 1) for "2.7.1+cu128"."""
    parts = text.strip().partition("+")[0].split(".")
    return tuple(map(int, itertools.takewhile(str.isdigit, parts)))


def admits(versions: str, minor: tuple[int, ...]) -> bool:
    """Return whether pip would accept some release of a minor version, (3, 11); a version alone means that one."""
    return any(admits_release(versions, (*minor[:2], patch)) for patch in range(_PATCHES))


def admits_release(versions: str, release: tuple[int, ...]) -> bool:
    """Return whether pip would accept one release, (3, 11, 4)."""
    return _specifiers(versions).contains(".".join(map(str, release)), prereleases=True)


@functools.lru_cache(maxsize=64)
def _specifiers(versions: str) -> SpecifierSet:
    exact = f"=={versions}" if versions[:1].isdigit() else versions
    try:
        return SpecifierSet(re.sub(r"\+[\w.]+", "", exact))
    except InvalidSpecifier:
        # uv says what is wrong with it, and says it better.
        return SpecifierSet()


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or that of a script's header, once until it changes; raise ConfigError with a bad line."""
    try:
        # The time and the size say whether the file has changed since it was read.
        stat = path.stat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="correct its name or its mode") from error
    return _parsed(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=64)
def _parsed(path: Path, mtime_ns: int, size: int) -> dict[str, Any]:
    try:
        toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:
        # Python 3.9 and 3.10 have no reader of their own.
        hint = "pip install 'tomli>=2'"
        raise ConfigError(f"reading {path.name} needs tomli on Python older than 3.11", hint=hint) from error
    text = read_text(path)
    text = header_of_script(text) if path.suffix == ".py" else text
    try:
        return dict(toml.loads(text))
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint="correct that line") from error


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
        sources = [source for _, source in source_tables(settings.get("sources") or {})]
        places = [above / Path(str(source["path"])).expanduser() for source in sources if "path" in source]
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


def source_tables(sources: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where uv takes each package from: (name, table), as one may have several tables."""
    for name, given in sources.items():
        for source in given if isinstance(given, list) else [given]:
            if isinstance(source, dict):
                yield name, source


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
