"""plan.json: what is to be built, as the client wrote it. Checked here, because its names become paths.

Pure but for reading the file.
"""

import json
import re
from typing import NamedTuple

from ..supervisor.text import native
from .failure import Failed

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
CONDA, TAR_BZ2, WHEEL = ".conda", ".tar.bz2", ".whl"


class Package(NamedTuple):
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
        """`.conda`, `.tar.bz2` or `.whl`."""
        return next((end for end in (CONDA, TAR_BZ2, WHEEL) if self.file.endswith(end)), "")

    @property
    def label(self) -> str:
        """Its name for people."""
        return "%s %s" % (self.name, self.version)


class Plan(NamedTuple):
    """What a builder does.

    Attributes:
        fetch: Whether the host may fetch what lies nowhere on it.
        zstd: A wheel of `zstandard` for the host's Python, if that cannot read zstd.
        verify: Modules that the environment must import.
        about: What the user named, for people.
        compile: Whether to make byte code.
        purged: Whether files may be missing from an environment that is there.
        timeout_s: How many seconds a post-link script may take, and for how many any program may do nothing.
        installer: "clusterfn"; "conda", or the path of one: it makes what it can, and our linker the rest.
        owners: Users and groups whose folders count as one's own.
        document: The plan as it came.
    """

    id: str
    root: str
    python: "tuple[int, int]"
    packages: "list[Package]"
    fetch: bool
    zstd: "Optional[Package]"
    verify: "list[str]"
    about: str
    compile: bool
    purged: bool
    timeout_s: float
    installer: str
    owners: "list[str]"
    document: "dict[str, Any]"


def read(path: str) -> Plan:
    """The plan in a file."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse(native(json.load(file)))
    except OSError as error:
        raise Failed("the plan cannot be read: %s" % error, stage="plan") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Failed("%s is no plan: %s: %s" % (path, type(error).__name__, error), stage="plan") from error


def parse(given: "dict[str, Any]") -> Plan:
    """A plan from its document."""
    if given["format"] != FORMAT:
        raise ValueError("format %r, this builder knows %d" % (given["format"], FORMAT))
    if not given["root"].startswith("/"):
        raise ValueError("root %r is not absolute" % given["root"])
    major, minor = given["python"]
    return Plan(
        id=is_id(given["id"]),
        root=given["root"].rstrip("/"),
        python=(int(major), int(minor)),
        packages=[package(each) for each in given["packages"]],
        fetch=bool(given["fetch"]),
        zstd=package(given["zstd"]) if given.get("zstd") else None,
        verify=[str(name) for name in given.get("verify", ())],
        about=str(given.get("about", "")),
        compile=bool(given.get("compile", True)),
        purged=bool(given.get("purged", False)),
        timeout_s=float(given.get("timeout_s") or _TIMEOUT_S),
        installer=str(given.get("installer") or CLUSTERFN),
        owners=[str(name) for name in given.get("owners") or ()],
        document=given,
    )


def is_id(text: str) -> str:
    """The id of an environment, which becomes the name of folders."""
    if not _ID.match(text):
        raise ValueError("%r is no id of an environment" % text)
    return text


def package(given: "dict[str, Any]") -> Package:
    """One package of a plan."""
    found = Package(
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
