"""Read plan.json, the client's description of what to build, and check it: its names become paths.

Pure, except that it reads the file.
"""

import json
import re
from typing import NamedTuple

from ..supervisor.text import native
from .errors import BuildFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

FORMAT = 1
CLUSTERFN = "clusterfn"
_TIMEOUT_S = 1200.0
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{3,63}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_NAME = re.compile(r"[0-9A-Za-z_][^/\s\x00-\x1f]*\Z")
_BUILD = re.compile(r"[^/\s\x00-\x1f]*\Z")
CONDA, TAR_BZ2, WHEEL, TAR_GZ = ".conda", ".tar.bz2", ".whl", ".tar.gz"
_VERSION = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){2}\Z")


class PlannedPackage(NamedTuple):
    """One archive of the lock."""

    name: str
    version: str
    build: str
    manager: str
    file: str
    url: str
    sha256: str
    size: int

    @property
    def kind(self) -> str:
        """`.conda`, `.tar.bz2` or `.whl`; `.tar.gz` is a Python of python-build-standalone."""
        return next((end for end in (CONDA, TAR_BZ2, WHEEL, TAR_GZ) if self.file.endswith(end)), "")

    @property
    def label(self) -> str:
        """The name shown in messages."""
        return "%s %s" % (self.name, self.version)


class BasePython(NamedTuple):
    """The host's own interpreter, on which an environment is built as a venv is.

    Attributes:
        version: "3.11.4"; with another one the environment is not the one that was locked.
    """

    path: str
    version: str


class BuildPlan(NamedTuple):
    """What to build, and how.

    Attributes:
        fetch: Whether the host may download missing archives.
        zstd: A wheel of `zstandard` for the host's Python, if that cannot read zstd.
        verify: Modules that the environment must import.
        about: What the user asked for, shown in listings.
        compile: Whether to make byte code.
        purged: Whether files may be missing from an environment that is there.
        timeout_s: How many seconds a post-link script may take, and for how many any program may do nothing.
        installer: "clusterfn"; "conda", or the path of one: it installs what it can, and our linker the rest.
        owners: Users and groups whose folders are trusted.
        base: The host's interpreter that it is built on; None if a package brings its Python.
        document: The plan as it was read.
    """

    id: str
    root: str
    python: "tuple[int, int]"
    packages: "list[PlannedPackage]"
    fetch: bool
    zstd: "Optional[PlannedPackage]"
    verify: "list[str]"
    about: str
    compile: bool
    purged: bool
    timeout_s: float
    installer: str
    owners: "list[str]"
    base: "Optional[BasePython]"
    document: "dict[str, Any]"


def read_plan(path: str) -> BuildPlan:
    """Read the plan in a file."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse_plan(native(json.load(file)))
    except OSError as error:
        raise BuildFailed("the plan cannot be read: %s" % error, stage="plan") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BuildFailed("%s is no plan: %s: %s" % (path, type(error).__name__, error), stage="plan") from error


def parse_plan(given: "dict[str, Any]") -> BuildPlan:
    """Make a plan from its document."""
    if given["format"] != FORMAT:
        raise ValueError("format %r, this builder knows %d" % (given["format"], FORMAT))
    if not given["root"].startswith("/"):
        raise ValueError("root %r is not absolute" % given["root"])
    major, minor = given["python"]
    return BuildPlan(
        id=check_id(given["id"]),
        root=given["root"].rstrip("/"),
        python=(int(major), int(minor)),
        packages=[parse_package(each) for each in given["packages"]],
        fetch=bool(given["fetch"]),
        zstd=parse_package(given["zstd"]) if given.get("zstd") else None,
        verify=[str(name) for name in given.get("verify", ())],
        about=str(given.get("about", "")),
        compile=bool(given.get("compile", True)),
        purged=bool(given.get("purged", False)),
        timeout_s=float(given.get("timeout_s") or _TIMEOUT_S),
        installer=str(given.get("installer") or CLUSTERFN),
        owners=[str(name) for name in given.get("owners") or ()],
        base=_base(given["base"]) if given.get("base") else None,
        document=given,
    )


def _base(given: "dict[str, Any]") -> BasePython:
    if not given["path"].startswith("/") or "\n" in given["path"]:
        raise ValueError("%r is no absolute path" % given["path"])
    return BasePython(given["path"], _matching(_VERSION, given["version"]))


def check_id(text: str) -> str:
    """Return the id of an environment if it can be the name of a folder; raise ValueError otherwise."""
    if not _ID.match(text):
        raise ValueError("%r is no id of an environment" % text)
    return text


def parse_package(given: "dict[str, Any]") -> PlannedPackage:
    """Read one package of a plan."""
    found = PlannedPackage(
        _matching(_NAME, given["name"]), _matching(_NAME, given["version"]),
        _matching(_BUILD, given.get("build") or ""), str(given.get("manager", "")), _matching(_NAME, given["file"]),
        str(given.get("url") or ""), _matching(_SHA256, given["sha256"]), int(given.get("size") or 0),
    )  # fmt: skip
    if not found.kind:
        raise ValueError("%s is neither a conda package nor a wheel" % found.file)
    return found


def _matching(pattern: "re.Pattern[str]", text: str) -> str:
    if not pattern.match(text):
        raise ValueError("%r" % text)
    return text
