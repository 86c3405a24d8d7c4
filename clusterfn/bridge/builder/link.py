"""Where each file of an environment comes from (`Layout`), and how it is linked or written there (`Linker`).

`pkgs/<sha256>/manifest.json` says what a package consists of. A `Layout` is computed from the packages alone, so the
same one makes an environment and finds what is missing in it.
"""

import errno
import os
import re
import shutil
from typing import NamedTuple

from ..layout import ABOUT, MANIFEST, READY
from . import stopping
from .errors import BuildFailed
from .plan import read_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

FORMAT = 1
LINK, SYMLINK, TEXT, BINARY, SCRIPT, WRITE = "link", "symlink", "text", "binary", "script", "write"
_REFUSED = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
# Older kernels silently truncate a longer first line.
_LONGEST_SHEBANG = 127
_SHEBANG = re.compile(rb"#![ \t]*(.*?)[ \t]*\r?\n")


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
        noarch: "python" if it belongs to any version of it.
        entry_points: Lines `name = module:attribute`.
    """

    name: str
    version: str
    kind: str
    facts: "dict[str, Any]"
    noarch: "Optional[str]"
    entry_points: "list[str]"
    files: "list[PackageFile]"


def read_manifest(folder: str) -> "Optional[Manifest]":
    """Read the manifest of an unpacked package; None if it is missing or has another format."""
    document = read_document(os.path.join(folder, MANIFEST)) or {}
    try:
        if document.pop("format") != FORMAT:
            return None
        document["files"] = [PackageFile(*each) for each in document["files"]]
        return Manifest(**document)
    except (TypeError, KeyError):
        return None


class PackageDamaged(Exception):
    """A file of an unpacked package is missing or truncated: a purging file system, or a crash of the machine.

    Its argument is the package's folder.
    """


def manifest_of(folder: str) -> Manifest:
    """Return the manifest of an unpacked package, or raise PackageDamaged."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise PackageDamaged(folder)
    return manifest


class TargetFile(NamedTuple):
    """One file of an environment.

    Attributes:
        path: Below the prefix.
        how: LINK to the package's file; SYMLINK to `content`; TEXT, BINARY or SCRIPT: a copy with the prefix in it;
            WRITE of `content`.
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
        top = os.path.normpath(target.path).partition("/")[0]
        if top in ("..", ""):
            raise BuildFailed("%s would be outside the environment" % target.path, stage="link")
        if top in (READY, ABOUT):
            raise BuildFailed("a package brings %s, which only the builder may write" % target.path, stage="link")
        self.targets[target.path] = target

    def sources(self) -> "list[TargetFile]":
        """List the Python modules in order."""
        found = [each for each in self.targets.values() if each.path.endswith(".py") and each.how != SYMLINK]
        return sorted((each for each in found if each.path.startswith(self.library + "/")), key=lambda each: each.path)


class Linker:
    """Links or writes files into a folder that is, or will become, the prefix."""

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._made = {folder}

    def make_all(self, targets: "Iterable[TargetFile]") -> None:
        """Make files, unless the builder is asked to end; raise as `make`."""
        for target in targets:
            stopping.check()
            self.make(target)

    def make(self, target: TargetFile) -> None:
        """Put a file in its place, replacing what is there.

        Raises:
            PackageDamaged: Its package has lost the file.
            BuildFailed: It would be outside the environment, or the prefix is too long for it.
        """
        path = os.path.join(self._folder, target.path)
        folder = os.path.dirname(path)
        if folder not in self._made:
            self._refuse_outside(folder, target)
            os.makedirs(folder, exist_ok=True)
            # Another thread may have made a link meanwhile.
            self._refuse_outside(folder, target)
            self._made.add(folder)
        try:
            self._put(target, path)
        except FileExistsError:
            # It is a truncated file, or one of an earlier builder.
            os.unlink(path)
            self._put(target, path)

    def _put(self, target: TargetFile, path: str) -> None:
        if target.how == LINK:
            _refuse_damaged(target)
            try:
                os.link(target.source, path)
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                shutil.copy(target.source, path)
        elif target.how == SYMLINK:
            os.symlink(os.fsdecode(target.content), path)
        else:
            data = _file_content(target, self._prefix)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777 if target.executable else 0o666)
            with os.fdopen(fd, "wb") as file:
                file.write(data)

    def _refuse_outside(self, folder: str, target: TargetFile) -> None:
        real, root = os.path.realpath(folder), os.path.realpath(self._folder)
        if not (real + "/").startswith(root + "/"):
            raise BuildFailed("%s would be written to %s, by way of a link" % (target.path, real), stage="link")


def _refuse_damaged(target: TargetFile) -> None:
    try:
        if os.stat(target.source).st_size == target.size:
            return
    except FileNotFoundError:
        pass
    raise PackageDamaged(target.package)


def _file_content(target: TargetFile, prefix: str) -> bytes:
    """Return the content of a file that is not a link; raise as `Linker.make`."""
    if target.how == WRITE:
        return target.content
    _refuse_damaged(target)
    with open(target.source, "rb") as file:
        data = file.read()
    if target.how == SCRIPT:
        return shebang(os.path.join(prefix, "bin", "python")) + data.partition(b"\n")[2]
    old, new = os.fsencode(target.placeholder), os.fsencode(prefix)
    if target.how == TEXT:
        # The prefix may be longer than the placeholder, and then the first line of a script, too.
        return _runnable(data.replace(old, new))
    if len(new) > len(old):
        raise BuildFailed(
            "the folder of environments has too long a path for %s: the prefix has %d bytes, the file has room for %d"
            % (target.path, len(new), len(old)), stage="link", evidence=[prefix], hint="choose a shorter env_root:",
        )  # fmt: skip

    def fill(match: "re.Match[bytes]") -> bytes:
        text = match.group()
        return text.replace(old, new) + b"\0" * ((len(old) - len(new)) * text.count(old))

    # Each string that holds the placeholder is padded with NULs to the length it had.
    return re.sub(re.escape(old) + rb"[^\0]*", fill, data)


def shebang(python: str) -> bytes:
    """Return the first lines of a Python script."""
    return _runnable(b"#!%s\n" % os.fsencode(python))


def _runnable(data: bytes) -> bytes:
    """Make a script runnable although its first line is too long, or its program's path has a space."""
    match = _SHEBANG.match(data)
    if not match or not match.group(1).startswith(b"/"):
        return data
    # The folder may have spaces in its path, and the program's name may not.
    folder, slash, rest = match.group(1).rpartition(b"/")
    name, _, arguments = rest.partition(b" ")
    program = folder + slash + name
    if len(match.group().rstrip()) <= _LONGEST_SHEBANG and b" " not in program:
        return data
    # A shell reads these two lines as an exec, and Python reads them as a string.
    if name.startswith((b"python", b"pypy")):
        quoted = re.sub(rb'([\\"$`])', rb"\\\1", program)
        first = b"#!/bin/sh\n'''exec' \"%s\" \"$0\" \"$@\"\n' '''\n" % quoted
    else:
        first = b"#!/usr/bin/env %s\n" % b" ".join([name, arguments.strip()]).strip()
    return first + data[match.end() :]
