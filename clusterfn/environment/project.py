"""A project's own file of dependencies, as one value: pyproject.toml, uv.lock, pylock.toml or requirements.txt.

`environment_files` reads it, `wheels` finds its wheels with uv. Here is also what all readers of such files need: TOML,
and names and versions as pip compares them.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from clusterfn.config.text_file import read_text
from clusterfn.errors import ConfigError

PYPROJECT, UV_LOCK, PYLOCK, REQUIREMENTS = "pyproject.toml", "uv.lock", "pylock.toml", "requirements.txt"
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
    """Read a TOML file, once until it changes, as every call reads it; raise ConfigError with the line that is bad."""
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
    try:
        return dict(toml.loads(read_text(path, only="utf-8")))
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint="correct that line") from error
