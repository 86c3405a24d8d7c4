"""Read and write locks: the archives that make an environment, each with a hash, in conda-lock's format (version 1).

Reading needs neither conda-lock nor a solver. Nothing is downloaded or solved here; `solver` makes locks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from clusterfn.config.yamlfile import trick
from clusterfn.errors import LockError

FORMAT = 1
INPUT = "clusterfn_input"
UNASKED = "clusterfn_python"  # why its Python is the host's own, if the user did not ask for that
VIRTUAL = "clusterfn_virtual_packages_"
CONDA, WHEEL, STANDALONE, HOST = "conda", "pip", "standalone", "host"  # managers; the last two have python alone
_CONDA = (".conda", ".tar.bz2")
_SHA256 = re.compile("[0-9a-f]{64}")
_NAME = re.compile(r"[0-9A-Za-z_][^/\s\x00-\x1f]*")  # becomes the name of files on hosts
_PYTHON = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})(?:\..*)?")
_SHOWN = 100  # characters of what a message repeats
_AGAIN = "restore it from version control, or delete it so that clusterfn solves it again"


class Unsolved(Exception):
    """There is no solution, but there may be one for another Python.

    Attributes:
        error: What the user sees if there is none.
    """

    def __init__(self, error: LockError) -> None:
        super().__init__(error)
        self.error = error


class NoPython(LockError):
    """No place gives a Python for an environment, but a host may have one."""


@dataclass(frozen=True)
class LockedPackage:
    """One archive.

    Attributes:
        build: conda's; "" for a wheel.
        manager: "conda" or "pip"; of python also "standalone", an archive of python-build-standalone, or "host": the
            host's own interpreter, which has no archive.
        file: The archive's name.
    """

    name: str
    version: str
    build: str
    manager: str
    file: str
    url: str
    sha256: str
    platform: str

    @property
    def is_archive(self) -> bool:
        """Whether there is something to fetch."""
        return self.manager != HOST

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """What distinguishes it from others; not its address."""
        return (self.name, self.version, self.build, self.manager, self.sha256)


@dataclass(frozen=True)
class EnvironmentLock:
    """The content of a lock file.

    Attributes:
        custom: Of its metadata; what `solver` wrote there.
    """

    path: Path
    packages: tuple[LockedPackage, ...]
    platforms: tuple[str, ...]
    custom: Mapping[str, str] = field(default_factory=dict)

    def on(self, platform: str) -> tuple[LockedPackage, ...]:
        """Return the packages for a platform, in the order of the file."""
        return tuple(each for each in self.packages if each.platform == platform)

    def id(self, platform: str) -> str:
        """Return the environment's name on every host: it depends on its packages, not on their addresses."""
        parts = [FORMAT, platform, sorted(each.identity for each in self.on(platform))]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def python(self, platform: str) -> tuple[int, int]:
        """Return (major, minor) of its Python.

        Raises:
            LockError: It has none.
        """
        version = self.python_version(platform)
        parts = _PYTHON.fullmatch(version)
        if parts is None:
            raise LockError(f"{self.path}: {version[:_SHOWN]} is not a version of Python", hint=_AGAIN)
        return int(parts[1]), int(parts[2])

    def python_version(self, platform: str) -> str:
        """Return the version of its Python as the lock has it, "3.11.7".

        Raises:
            LockError: It has none.
        """
        return self.python_package(platform).version

    def python_package(self, platform: str) -> LockedPackage:
        """Return its Python.

        Raises:
            LockError: It has none.
        """
        found = next((each for each in self.on(platform) if each.name == "python"), None)
        if found is None:
            raise LockError(f"{self.path} has no python for {platform}", hint='add "python" to the packages')
        return found

    def archives(self, platform: str) -> tuple[LockedPackage, ...]:
        """Return the packages of which a host needs an archive."""
        return tuple(each for each in self.on(platform) if each.is_archive)

    def virtual_packages(self, platform: str) -> dict[str, str]:
        """Return what was assumed of the host, {"__glibc": "2.28"}; empty for a lock made by other tools."""
        pairs = (pair.partition("=") for pair in self.custom.get(VIRTUAL + platform, "").split(";") if pair)
        return {name: version for name, _, version in pairs}

    @property
    def input_hash(self) -> str | None:
        """The hash of the specification that it was made from; None for a lock made by other tools."""
        return self.custom.get(INPUT)


def custom_metadata(input_hash: str, virtual: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Make the metadata that `EnvironmentLock.custom` reads."""
    joined = {
        VIRTUAL + platform: ";".join(f"{name}={version}" for name, version in sorted(packages.items()))
        for platform, packages in virtual.items()
    }
    return {INPUT: input_hash, **joined}


def read_lock(path: Path) -> EnvironmentLock:
    """Read the lock in a file.

    Raises:
        LockError: It is none, or names something that cannot be built on a host by its hash.
    """
    try:
        return parse_lock(path.read_bytes(), path)
    except OSError as error:
        raise LockError(f"{path} cannot be read: {error.strerror}", hint=_AGAIN) from error


def parse_lock(data: bytes, path: Path) -> EnvironmentLock:
    """Parse the content of a lock file; raise LockError as `read_lock` does."""
    tree = _tree(data, path)
    try:
        version = _text(tree["version"])
        if version != str(FORMAT):
            raise LockError(
                f"{path} has version {version[:_SHOWN]} of conda-lock's format; clusterfn reads version {FORMAT}",
                hint=_AGAIN,
            )
        packages = tuple(_package(row, path) for row in tree["package"] if row.get("category", "main") == "main")
        seen: dict[tuple[str, str, str], LockedPackage] = {}
        for each in packages:
            other = seen.setdefault((each.platform, each.manager, each.name), each)
            if other is not each:  # a merge of two branches without a conflict may leave both
                raise LockError(
                    f"{path} has {each.name} twice for {each.platform}: {other.version} and {each.version}", hint=_AGAIN
                )
        metadata = tree["metadata"]
        custom = metadata.get("custom_metadata")
        ours = {key: _text(value) for key, value in custom.items()} if isinstance(custom, dict) else {}
        return EnvironmentLock(path, packages, tuple(map(_text, metadata["platforms"])), ours)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LockError(f"{path} is not a conda-lock file: {repr(error)[:_SHOWN]}", hint=_AGAIN) from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, found a {type(value).__name__}")
    return value


def _tree(data: bytes, path: Path) -> dict[str, Any]:
    """Parse YAML with every scalar as written; make none of YAML's own types."""
    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # a lock may have 30 000 lines
    try:
        found = trick(data, loader)
        if found is not None:
            raise LockError(f"{path}:{found[1].line + 1}: {found[0][:_SHOWN]}", hint=_AGAIN)
        tree = yaml.load(data, Loader=loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        marks = re.search(rb"^(<{7}|>{7}) ", data, re.MULTILINE)
        why = "it has markers of an unfinished merge" if marks else "it is not YAML"
        raise LockError(f"{place}: {why}", hint=_AGAIN) from error
    if not isinstance(tree, dict):
        raise LockError(f"{path} is not a conda-lock file", hint=_AGAIN)
    return tree


def _package(row: Mapping[str, Any], path: Path) -> LockedPackage:
    url, manager, platform = _text(row["url"]), _text(row["manager"]), _text(row["platform"])
    name, version = _text(row["name"]), _text(row["version"])
    if manager == HOST and name == "python" and _PYTHON.fullmatch(version):
        return LockedPackage(name, version, "", HOST, "", "", "", platform)
    file = unquote(urlsplit(url).path).rpartition("/")[2]
    hashes = row.get("hash") or {}
    if not hashes.get("sha256"):
        raise LockError(
            f"{path}: {name} {version} has no SHA-256, so clusterfn could not check its archive",
            hint="its channel or index has none: use another one, or pin another version",
        )
    sha256 = _text(hashes["sha256"]).lower()
    if not _SHA256.fullmatch(sha256):
        raise LockError(f"{path}: {name} {version} has {sha256[:_SHOWN]!r} for a SHA-256", hint=_AGAIN)
    of_python = manager == STANDALONE and name == "python" and file.endswith(".tar.gz")
    if not (manager in (CONDA, WHEEL) or of_python) or not all(map(_NAME.fullmatch, (name, version, file))):
        raise LockError(f"{path}: {name} {version} is not a package of conda or pip: {manager}, {file}", hint=_AGAIN)
    build = ""
    if manager == "conda":
        stem = next((file[: -len(suffix)] for suffix in _CONDA if file.endswith(suffix)), None)
        if stem is None or stem.count("-") < 2:
            raise LockError(f"{path}: {name} {version} is not a conda archive: {file}", hint=_AGAIN)
        build = stem.rpartition("-")[2]
    if manager == "pip" and not file.endswith(".whl"):
        raise LockError(
            f"{path}: {name} {version} is only available as source ({file}), and hosts compile nothing",
            hint=f'use a version of {name} that has a wheel, or conda\'s: "{name}" instead of "pip:{name}"',
        )
    return LockedPackage(name, version, build, manager, file, url, sha256, platform)


def write_lock(path: Path, data: bytes) -> None:
    """Write a lock next to its path and rename it, so that no reader sees half of it.

    Raises:
        LockError: The folder cannot be written.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise LockError(f"the lock cannot be written: {path}: {error.strerror}") from error


def differences(before: EnvironmentLock, after: EnvironmentLock, platform: str) -> str:
    """Describe what changed, in a line: "numpy 1.26.4 -> 2.1.3; new: rich; gone: six"."""
    old, new = ({(each.manager, each.name): each for each in lock.on(platform)} for lock in (before, after))
    changed = [f"{key[1]} {_change(old[key], new[key])}" for key in sorted(old.keys() & new.keys())
               if old[key].identity != new[key].identity]  # fmt: skip
    parts = [", ".join(changed)] if changed else []
    for word, keys in (("new", new.keys() - old.keys()), ("gone", old.keys() - new.keys())):
        if keys:
            parts.append(f"{word}: {', '.join(name for _, name in sorted(keys))}")
    return "; ".join(parts) or "the packages are the same"


def _change(old: LockedPackage, new: LockedPackage) -> str:
    if old.version != new.version:
        return f"{old.version} -> {new.version}"
    return f"{old.version} {old.build} -> {new.build}" if old.build != new.build else "from another archive"
