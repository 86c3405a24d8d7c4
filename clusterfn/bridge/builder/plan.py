"""Read plan.json, the client's description of what to build, and check it: its names become paths.

The builder's other files of JSON are read and written here, too. They appear whole or not at all, and are the group's
if the root is. The addresses of archives are read here as well, without a network.
"""

import json
import os
import re
import urllib.parse
from typing import Any, Mapping, NamedTuple, Optional, Union

from ..supervisor import publish
from ..supervisor.text import native, portable
from .progress import BuildFailed

FORMAT = 1
_TIMEOUT_S = 1200.0
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{3,63}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_NAME = re.compile(r"[0-9A-Za-z_][^/\s\x00-\x1f]*\Z")
_BUILD = re.compile(r"[^/\s\x00-\x1f]*\Z")
CONDA, TAR_BZ2, WHEEL, TAR_GZ = ".conda", ".tar.bz2", ".whl", ".tar.gz"
_PATH = re.compile(r"/[^\n]*\Z")
_VERSION = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){2}\Z")


class PlannedPackage(NamedTuple):
    """One archive of the lock."""

    name: str
    version: str
    build: str
    manager: str
    file: str
    url: str
    sha256: str  # of the archive; for a wheel that is built, which has none, a hash of all that it is built from
    size: int
    source: "Optional[PlannedPackage]" = None  # the source distribution that it is built from
    requires: "tuple[PlannedPackage, ...]" = ()  # the wheels that build it

    @property
    def archives(self) -> "tuple[PlannedPackage, ...]":
        """The archives that have to be on the host: its own, or what it is built from."""
        return (self,) if self.source is None else (self.source,) + self.requires

    @property
    def kind(self) -> str:
        """`.conda`, `.tar.bz2` or `.whl`; `.tar.gz` is a Python of python-build-standalone."""
        return next((end for end in (CONDA, TAR_BZ2, WHEEL, TAR_GZ) if self.file.endswith(end)), "")

    @property
    def is_source(self) -> bool:
        """Whether it is a source distribution."""
        return self.manager == "pip" and self.kind != WHEEL

    @property
    def label(self) -> str:
        """The name shown in messages."""
        return "%s %s" % (self.name, self.version)


class BuildPlan(NamedTuple):
    """What to build, and how."""

    id: str
    root: str
    python: "tuple[int, int]"
    packages: "list[PlannedPackage]"
    fetch: bool  # whether the host may download missing archives
    zstd: "Optional[PlannedPackage]"  # a wheel of `zstandard` for the host's Python, if that cannot read zstd
    verify: "list[str]"  # modules that the environment must import
    about: str  # what the user asked for, shown in listings
    purged: bool  # whether files may be missing from an environment that is there
    timeout_s: float  # how many seconds activation may take, and for how many any program may do nothing
    owners: "list[str]"  # users and groups whose folders are trusted
    # The `path` and `version` of the host's interpreter that it is built on; None if a package brings its Python. With
    # another version the environment is not the one that was locked.
    base: "Optional[dict[str, str]]"
    setup: str  # lines of shell that load the host's modules before a wheel is built
    document: "dict[str, Any]"  # the plan as it was read


def read_plan(path: "Union[str, int]") -> BuildPlan:
    """Read the plan in a file, of which this is the path or the descriptor."""
    try:
        with open(path, encoding="utf-8") as file:
            given = native(json.load(file))
        if given["format"] != FORMAT:
            raise ValueError("format %r, this builder knows %d" % (given["format"], FORMAT))
        major, minor = given["python"]
        base = given.get("base")
        return BuildPlan(
            id=check_id(given["id"]),
            root=_matching(_PATH, given["root"]).rstrip("/"),
            python=(int(major), int(minor)),
            packages=list(map(parse_package, given["packages"])),
            fetch=bool(given["fetch"]),
            zstd=parse_package(given["zstd"]) if given.get("zstd") else None,
            verify=list(map(str, given.get("verify", ()))),
            about=str(given.get("about", "")),
            purged=bool(given.get("purged", False)),
            timeout_s=float(given.get("timeout_s") or _TIMEOUT_S),
            owners=list(map(str, given.get("owners") or ())),
            base=base and dict(path=_matching(_PATH, base["path"]), version=_matching(_VERSION, base["version"])),
            setup=str(given.get("setup") or ""),
            document=given,
        )
    except OSError as error:
        raise BuildFailed("the plan cannot be read: %s" % error, stage="plan") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        named = path if isinstance(path, str) else "the standard input"
        raise BuildFailed("%s is no plan: %s: %s" % (named, type(error).__name__, error), stage="plan") from error


def check_id(text: str) -> str:
    """Return the id of an environment if it can be the name of a folder; raise ValueError otherwise."""
    return _matching(_ID, text)


def parse_package(given: "dict[str, Any]") -> PlannedPackage:
    """Read one package of a plan."""
    package = _parse_archive(given)
    if not package.kind:
        raise ValueError("%s is neither a conda package nor a wheel" % package.file)
    if not given.get("source"):
        return package
    requires = tuple(parse_package(required) for required in given["requires"])
    return package._replace(source=_parse_archive(given["source"]), requires=requires)


def _parse_archive(given: "dict[str, Any]") -> PlannedPackage:
    return PlannedPackage(
        name=_matching(_NAME, given["name"]),
        version=_matching(_NAME, given["version"]),
        build=_matching(_BUILD, given.get("build") or ""),
        manager=str(given.get("manager", "")),
        file=_matching(_NAME, given["file"]),
        url=str(given.get("url") or ""),
        sha256=_matching(_SHA256, given["sha256"]),
        size=int(given.get("size") or 0),
    )


def _matching(pattern: "re.Pattern[str]", text: str) -> str:
    if not pattern.match(text):
        raise ValueError("%r does not match %s" % (text, pattern.pattern))
    return text


def local_path(url: str) -> str:
    """Return the path of a file:// address; "" for others."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "file":
        return ""
    if os.name == "nt":
        # Only Windows needs this module, which takes time to import.
        from urllib.request import url2pathname

        return url2pathname(parts.path)
    return urllib.parse.unquote(parts.path)


def masked(url: str) -> str:
    """Return an address without its password and without the token of a channel, so that it can be shown."""
    return re.sub(r"/t/[^/\s]+/", "/t/***/", re.sub(r"://[^/\s]*@", "://***@", url))


def write_document(path: str, document: "Mapping[str, Any]") -> None:
    """Write a file, replacing the one before."""
    publish.replace(path, json.dumps(portable(document)).encode(), mode=0o666)


def read_document(path: str) -> "Optional[dict[str, Any]]":
    """Read a file; None if there is none, or a full disk or a purging file system has cut it off."""
    try:
        with open(path, encoding="utf-8") as file:
            return dict(native(json.load(file)))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
