"""A project's own file of dependencies, as one value: pyproject.toml, uv.lock, pylock.toml or requirements.txt.

Pure, no I/O. `project_files` reads it, `wheels` finds its wheels with uv.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clusterfn.errors import ConfigError

PYPROJECT, UV_LOCK, PYLOCK, REQUIREMENTS = "pyproject.toml", "uv.lock", "pylock.toml", "requirements.txt"
GIT = "git+"  # before the address of a repository
PIP_LINES = "pip"  # lines of a `pip:` section or of packages=
_GROUP = "group:"
_PYLOCK = re.compile(r"pylock(?:\.[^.]+)?\.toml")  # PEP 751


@dataclass(frozen=True)
class ProjectFile:
    """A file that uv understands, and what the user chose in it.

    Attributes:
        kind: One of the names above.
        extras: Of its optional dependencies.
        groups: Of its dependency groups.
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
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    indexes: tuple[tuple[str, str], ...] = ()
    is_dynamic: bool = False
    lines: tuple[str, ...] = ()

    @property
    def is_locked(self) -> bool:
        """Whether its versions are fixed, so that only wheels are chosen."""
        return self.kind in (UV_LOCK, PYLOCK)

    @property
    def lock_stem(self) -> str:
        """The beginning of the name of its lock: other extras have another lock.

        Example:
            >>> ProjectFile(PYPROJECT, Path("pyproject.toml"), ("gpu",), ("dev",)).lock_stem
            'pyproject-gpu-group-dev'
        """
        return "-".join([self.path.stem, *self.extras, *(f"group-{group}" for group in self.groups)])


def is_project_file(path: Path) -> bool:
    """Whether `project_files` reads a file of that name."""
    name = path.name
    return path.suffix.lower() == ".txt" or name in (PYPROJECT, UV_LOCK) or bool(_PYLOCK.fullmatch(name))


def split_parts(parts: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split what is in brackets into extras and groups, sorted and normalized.

    Example:
        >>> split_parts(["gpu", "group:dev", "My_Extra"])
        (('gpu', 'my-extra'), ('dev',))
    """
    extras = {normalize(part) for part in parts if not part.startswith(_GROUP)}
    groups = {normalize(part[len(_GROUP) :].strip()) for part in parts if part.startswith(_GROUP)}
    return tuple(sorted(extras)), tuple(sorted(groups))


def normalize(name: str) -> str:
    """Return the name of a project, an extra or a group as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def refuse_parts(path: Path, parts: Sequence[str]) -> None:
    """Raise ConfigError if extras or groups are named of a file that has none."""
    if parts:
        raise ConfigError(
            f"{path.name} has no extras and no groups, but {', '.join(parts)} is named",
            hint=f'write environment="{path.name}", or name a pyproject.toml or its uv.lock',
        )
