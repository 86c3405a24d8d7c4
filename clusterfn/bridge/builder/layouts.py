"""What a package consists of (`pkgs/<sha256>/manifest.json`), and where each file of an environment comes from.

Data only. A `Layout` is computed from the packages alone, so the same one makes an environment and finds what is
missing in it.
"""

import json
import os
from typing import NamedTuple

from ..layout import ABOUT, READY
from ..supervisor.text import native, portable
from .errors import BuildFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

FORMAT = 1
LINK, SYMLINK, TEXT, BINARY, SCRIPT, WRITE = "link", "symlink", "text", "binary", "script", "write"
THERE = "there"


class PackageFile(NamedTuple):
    """One file of a package.

    Attributes:
        path: Below `files/`.
        link: The target, if it is a symbolic link.
        placeholder: The text to be replaced by the prefix; `mode` is text or binary.
    """

    path: str
    size: int
    executable: bool = False
    link: "Optional[str]" = None
    placeholder: "Optional[str]" = None
    mode: "Optional[str]" = None


class Manifest(NamedTuple):
    """One package.

    Attributes:
        kind: conda or wheel.
        facts: info/index.json of a conda package; of a wheel the name of its dist-info folder.
        noarch: python or generic.
        entry_points: Lines `name = module:attribute`.
    """

    name: str
    version: str
    kind: str
    facts: "dict[str, Any]"
    noarch: "Optional[str]"
    entry_points: "list[str]"
    files: "list[PackageFile]"

    @property
    def bytes(self) -> int:
        """The size of all its files."""
        return sum(file.size for file in self.files)


def write_manifest(manifest: Manifest, path: str) -> None:
    """Write a manifest and flush it to the disk."""
    with open(path, "w") as file:
        json.dump(portable(dict(manifest._asdict(), format=FORMAT)), file)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(path: str) -> "Optional[Manifest]":
    """Read a manifest; None if it is missing or has another format."""
    try:
        with open(path) as file:
            document = native(json.load(file))
        if document.pop("format") != FORMAT:
            return None
        document["files"] = [PackageFile(*each) for each in document["files"]]
        return Manifest(**document)
    except (OSError, ValueError, TypeError, KeyError):
        return None


class PackageDamaged(Exception):
    """A file of an unpacked package is missing or truncated: a purging file system, or a crash of the machine.

    Attributes:
        package: The package's folder.
    """

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package


class TargetFile(NamedTuple):
    """One file of an environment.

    Attributes:
        path: Below the prefix.
        how: LINK to the package's file; SYMLINK to `content`; TEXT, BINARY or SCRIPT: a copy with the prefix in it;
            WRITE of `content`; THERE: another installer has written it.
        package: The folder of its package.
        source: The file there.
        size: Of that.
    """

    path: str
    how: str
    package: str
    source: str = ""
    size: int = 0
    executable: bool = False
    placeholder: str = ""
    content: bytes = b""

    @property
    def inside(self) -> str:
        """The source's path in its package."""
        return os.path.relpath(self.source, os.path.join(self.package, "files"))


class Layout:
    """All files of an environment.

    Attributes:
        prefix: Its final path.
        python: Its interpreter there.
        site: site-packages, below the prefix.
        targets: Path -> where it comes from.
    """

    def __init__(self, prefix: str, version: "tuple[int, int]", site: "Optional[str]" = None) -> None:
        self.prefix = prefix
        self.version = version
        self.python = os.path.join(prefix, "bin", "python")
        self.library = "lib/python%d.%d" % version
        self.site = site or self.library + "/site-packages"
        self.tag = "cpython-%d%d" % version
        self.targets: "dict[str, TargetFile]" = {}

    def add(self, target: TargetFile) -> None:
        """Add a file; one of a later package replaces an earlier one's.

        Raises:
            BuildFailed: It is outside the environment, or has the name of a file that only the builder may write.
        """
        if os.path.normpath(target.path).startswith(("../", "/")):
            raise BuildFailed("%s would lie outside of the environment" % target.path, stage="link")
        if os.path.normpath(target.path).partition("/")[0] in (READY, ABOUT):
            raise BuildFailed("a package brings %s, which only the builder may write" % target.path, stage="link")
        self.targets[target.path] = target

    def sources(self) -> "list[TargetFile]":
        """List the Python modules in order."""
        return [
            target
            for path, target in sorted(self.targets.items())
            if path.endswith(".py") and path.startswith(self.library + "/") and target.how != SYMLINK
        ]
