"""Read locks: the archives that make an environment, each with a hash, in conda-lock's format (version 1).

Reading needs neither conda-lock nor a solver. `solver` makes and writes locks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from clusterfn.config.yamlfile import trick
from clusterfn.environment.project import GIT
from clusterfn.errors import LockError

FORMAT = 1
INPUT = "clusterfn_input"
VIRTUAL = "clusterfn_virtual_packages_"
# These are managers. The last two have python alone: as an archive without a package, and without an archive.
CONDA, WHEEL, STANDALONE, HOST = "conda", "pip", "standalone", "host"
# The format has no place for what builds a source distribution, so that has a category of its own.
BUILDS = "build-"
_CONDA = (".conda", ".tar.bz2")
_WHEEL = ".whl"
_SOURCES = (".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz", ".tar")
_SHA256 = re.compile("[0-9a-f]{64}")
# It becomes the name of files on hosts.
_NAME = re.compile(r"[0-9A-Za-z_][^/\s\x00-\x1f]*")
_PYTHON = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})(?:\..*)?")
# A damaged lock may have values of megabytes, which no message must repeat.
_SHOWN = 100
_AGAIN = "restore it from version control, or delete it so that clusterfn solves it again"


class Unsolved(LockError):
    """There is no solution, but there may be one for another Python. The user sees a LockError."""


@dataclass(frozen=True)
class LockedPackage:
    """One archive.

    Attributes:
        manager: "conda" or "pip"; of python also "standalone", an archive of python-build-standalone, or "host": the
            host's own interpreter, which has no archive.
        url: Without a password.
        sha256: "" if neither its index nor its channel has one; such a lock is rejected.
        builds_with: The wheels that build it, if it is a source distribution.
        dependencies, md5: Of a conda package, for other tools that read the lock.
    """

    name: str
    version: str
    manager: str
    url: str
    sha256: str
    platform: str
    builds_with: tuple[LockedPackage, ...] = ()
    dependencies: Mapping[str, str] = field(default_factory=dict, compare=False)
    md5: str = field(default="", compare=False)

    @property
    def file(self) -> str:
        """The archive's name."""
        return f"{self.name}-{self.version}.tar" if self.url.startswith(GIT) else file_name(self.url)

    @property
    def build(self) -> str:
        """conda's; "" for a wheel."""
        stem = next((self.file[: -len(suffix)] for suffix in _CONDA if self.file.endswith(suffix)), "")
        return stem.rpartition("-")[2] if self.manager == CONDA else ""

    @property
    def is_source(self) -> bool:
        """Whether the host builds a wheel of it."""
        return self.manager == WHEEL and not self.file.endswith(_WHEEL)

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """What distinguishes it from others; not its address. What builds it counts, too."""
        build = self.build or ",".join(sorted(package.sha256 for package in self.builds_with))
        return (self.name, self.version, build, self.manager, self.sha256)


@dataclass(frozen=True)
class EnvironmentLock:
    """The content of a lock file.

    Attributes:
        custom: Of its metadata; what `solver` wrote there.
        written: When its file was written, if it was read from one.
    """

    path: Path
    packages: tuple[LockedPackage, ...]
    platforms: tuple[str, ...]
    custom: Mapping[str, str] = field(default_factory=dict)
    written: int = field(default=0, compare=False)

    def is_changed(self) -> bool:
        """Whether its file was written again, or is gone."""
        try:
            return self.path.stat().st_mtime_ns != self.written
        except OSError:
            return True

    def on(self, platform: str) -> tuple[LockedPackage, ...]:
        """Return the packages for a platform, in the order of the file."""
        return tuple(package for package in self.packages if package.platform == platform)

    def id(self, platform: str) -> str:
        """Return the environment's name on every host: it depends on its packages, not on their addresses."""
        parts = [FORMAT, platform, sorted(package.identity for package in self.on(platform))]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def python(self, platform: str) -> tuple[int, int]:
        """Return (major, minor) of its Python; raise as `python_package`."""
        version = self.python_package(platform).version
        parts = _PYTHON.fullmatch(version)
        if parts is None:
            raise LockError(f"{self.path}: {version[:_SHOWN]} is not a version of Python", hint=_AGAIN)
        return int(parts[1]), int(parts[2])

    def python_package(self, platform: str) -> LockedPackage:
        """Return its Python; raise LockError if it has none."""
        found = next((package for package in self.on(platform) if package.name == "python"), None)
        if found is None:
            raise LockError(f"{self.path} has no python for {platform}", hint='add "python" to the packages')
        return found

    def archives(self, platform: str) -> tuple[LockedPackage, ...]:
        """Return the packages of which a host needs an archive."""
        return tuple(package for package in self.on(platform) if package.manager != HOST)

    def builds(self, platform: str) -> tuple[LockedPackage, ...]:
        """Return what builds the source distributions among them."""
        return tuple(build for package in self.on(platform) for build in package.builds_with)

    def virtual_packages(self, platform: str) -> dict[str, str]:
        """Return what was assumed of the host, {"__glibc": "2.28"}; empty for a lock made by other tools."""
        pairs = (pair.partition("=") for pair in self.custom.get(VIRTUAL + platform, "").split(";") if pair)
        return {name: version for name, _, version in pairs}

    @property
    def input_hash(self) -> str | None:
        """The hash of the specification that it was made from; None for a lock made by other tools."""
        return self.custom.get(INPUT)


def file_name(url: str) -> str:
    """Return the name of the file at an address."""
    return unquote(urlsplit(url).path).rpartition("/")[2]


def read_lock(path: Path) -> EnvironmentLock:
    """Read the lock in a file; raise LockError if it is none, or names what no host can build by its hash."""
    try:
        # The time is taken before the content, so that a change meanwhile is seen later.
        written = path.stat().st_mtime_ns
        return replace(parse_lock(path.read_bytes(), path), written=written)
    except OSError as error:
        raise LockError(f"{path} cannot be read: {error.strerror}", hint=_AGAIN) from error


def parse_lock(data: bytes, path: Path) -> EnvironmentLock:
    """Parse the content of a lock file; raise LockError as `read_lock` does."""
    tree = _tree(data, path)
    try:
        version = _text(tree["version"])
        if version != str(FORMAT):
            what = f"{path} has version {version[:_SHOWN]} of conda-lock's format"
            raise LockError(f"{what}; clusterfn reads version {FORMAT}", hint=_AGAIN)
        metadata = tree["metadata"]
        custom = metadata.get("custom_metadata")
        ours = {key: _text(value) for key, value in custom.items()} if isinstance(custom, dict) else {}
        builds: dict[tuple[str, str], list[LockedPackage]] = {}
        for row in tree["package"]:
            if row.get("category", "").startswith(BUILDS):
                built = (_text(row["platform"]), row["category"][len(BUILDS) :])
                builds.setdefault(built, []).append(_package(row, path))
        packages: dict[tuple[str, str, str], LockedPackage] = {}
        for row in tree["package"]:
            # An older conda-lock wrote what it supposed of a host, such as `__osx`, as packages.
            if row.get("category", "main") != "main" or str(row["name"]).startswith("__"):
                continue
            package = _package(row, path)
            if package.is_source and INPUT not in ours:
                what = f"{package.name} {package.version} is only available as source ({package.file})"
                hint = "lock it again with clusterfn, which records that; or use a version that has a wheel"
                raise LockError(f"{path}: {what}, and the lock does not say what builds it", hint=hint)
            if package.is_source:
                package = replace(package, builds_with=tuple(builds.get((package.platform, package.name), ())))
            other = packages.setdefault((package.platform, package.manager, package.name), package)
            # A merge of two branches may leave both without a conflict.
            if other is not package:
                what = f"{path} has {package.name} twice for {package.platform}: {other.version} and {package.version}"
                raise LockError(what, hint=_AGAIN)
        return EnvironmentLock(path, tuple(packages.values()), tuple(map(_text, metadata["platforms"])), ours)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LockError(f"{path} is not a conda-lock file: {repr(error)[:_SHOWN]}", hint=_AGAIN) from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, found a {type(value).__name__}")
    return value


def _tree(data: bytes, path: Path) -> dict[str, Any]:
    """Parse YAML with every scalar as written; make none of YAML's own types."""
    # A lock may have 30 000 lines, for which the loader in Python takes seconds.
    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        found = trick(data, loader)
        tree = yaml.load(data, Loader=loader) if found is None else None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        spot = getattr(error, "problem_mark", None)
        conflict = re.search(rb"^(<{7}|>{7}) ", data, re.MULTILINE)
        why = "it has markers of an unfinished merge" if conflict else "it is not YAML"
        raise LockError(f"{path}:{spot.line + 1}: {why}" if spot else f"{path}: {why}", hint=_AGAIN) from error
    if found is not None:
        raise LockError(f"{path}:{found[1].line + 1}: {found[0][:_SHOWN]}", hint=_AGAIN)
    if not isinstance(tree, dict):
        raise LockError(f"{path} is not a conda-lock file", hint=_AGAIN)
    return tree


def _package(row: Mapping[str, Any], path: Path) -> LockedPackage:
    url, manager, platform = _text(row["url"]), _text(row["manager"]), _text(row["platform"])
    name, version = _text(row["name"]), _text(row["version"])
    if manager == HOST and name == "python" and _PYTHON.fullmatch(version):
        return LockedPackage(name, version, HOST, "", "", platform)
    hashes = row.get("hash") or {}
    if not hashes.get("sha256"):
        hint = "its channel or index has none: use another one, or pin another version"
        raise LockError(f"{path}: {name} {version} has no SHA-256, so clusterfn could not check its archive", hint=hint)
    sha256 = _text(hashes["sha256"]).lower()
    if not _SHA256.fullmatch(sha256):
        raise LockError(f"{path}: {name} {version} has {sha256[:_SHOWN]!r} for a SHA-256", hint=_AGAIN)
    package = LockedPackage(
        name, version, manager, url, sha256, platform, (), row.get("dependencies") or {}, hashes.get("md5", "")
    )
    endings = {CONDA: _CONDA, WHEEL: (_WHEEL, *_SOURCES), STANDALONE: (".tar.gz",) if name == "python" else ()}
    file = package.file
    fits = package.file.endswith(endings.get(manager, ()))
    if not (fits and all(map(_NAME.fullmatch, (name, version, file)))) or (manager == CONDA and file.count("-") < 2):
        raise LockError(f"{path}: {name} {version} is not a package of conda or pip: {manager}, {file}", hint=_AGAIN)
    return package
