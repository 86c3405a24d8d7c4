"""Where each file of an environment comes from (`Layout`), and how it is linked or written there (`Linker`).

`pkgs/<sha256>/manifest.json` says what a package consists of. A `Layout` is computed from the packages alone, so the
same one makes an environment and finds what is missing in it.

Byte code is linked as well. A .pyc holds the date and size of its source, and would be stale once the build sets the
dates of files. Python would then compile at every start, and write into an environment that others use. So what
packages bring is left out, and byte code is made here that is never compared ("unchecked", PEP 552). The modules of a
package are compiled once, beside its files, for all environments that have it. Measured: `import torch` takes 3.0 s
without byte code and 1.2 s with it; compiling its 2371 files takes 5 to 7 s once.
"""

import contextlib
import errno
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterable, NamedTuple, Optional

from ..layout import ABOUT, MANIFEST, READY
from . import programs
from .plan import read_document
from .progress import BuildFailed

FORMAT = 1
LINK, SYMLINK, TEXT, BINARY, SCRIPT, WRITE = "link", "symlink", "text", "binary", "script", "write"
_REFUSED = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
# Older kernels silently truncate a longer first line.
_LONGEST_SHEBANG = 127
_SHEBANG = re.compile(rb"#![ \t]*(.*?)[ \t]*\r?\n")


class PackageFile(NamedTuple):
    """One file of a package."""

    path: str  # below `files/`
    size: int
    executable: bool = False
    link: "Optional[str]" = None  # the target, if it is a symbolic link
    placeholder: "Optional[str]" = None  # the text to be replaced by the prefix
    mode: "Optional[str]" = None  # of a file with a placeholder: TEXT or BINARY


class Manifest(NamedTuple):
    """One package."""

    name: str
    version: str
    kind: str  # conda, wheel, standalone or source
    facts: "dict[str, Any]"  # info/index.json of a conda package; of a wheel the name of its dist-info folder
    noarch: "Optional[str]"  # "python" if it belongs to any version of it
    entry_points: "list[str]"  # lines `name = module:attribute`
    files: "list[PackageFile]"


def read_manifest(folder: str) -> Manifest:
    """Read the manifest of an unpacked package; raise PackageDamaged if it is missing or has another format."""
    document = read_document(os.path.join(folder, MANIFEST)) or {}
    with contextlib.suppress(TypeError, KeyError):
        if document.pop("format") == FORMAT:
            document["files"] = [PackageFile(*fields) for fields in document["files"]]
            return Manifest(**document)
    raise PackageDamaged(folder)


class PackageDamaged(Exception):
    """A file of the package in this folder is missing or truncated: by a purging file system, or a machine's crash."""


class TargetFile(NamedTuple):
    """One file of an environment."""

    path: str  # below the prefix
    # LINK to the package's file; SYMLINK to or WRITE of `content`; TEXT, BINARY, SCRIPT: a copy that names the prefix.
    how: str
    package: str  # the folder of its package
    source: str = ""  # the file there
    size: int = 0  # of that file
    executable: bool = False
    placeholder: str = ""
    content: bytes = b""


class Layout:
    """All files of an environment, whose final path is the prefix."""

    def __init__(self, prefix: str, version: "tuple[int, int]", site: "Optional[str]" = None) -> None:
        self.prefix = prefix
        self.version = version
        self.python = os.path.join(prefix, "bin", "python")
        self.library = "lib/python%d.%d" % version
        self.site = site or self.library + "/site-packages"  # below the prefix
        self.tag = "cpython-%d%d" % version
        self.targets: "dict[str, TargetFile]" = {}  # by their paths

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
        found = [target for target in self.targets.values() if target.path.endswith(".py") and target.how != SYMLINK]
        return sorted(target for target in found if target.path.startswith(self.library + "/"))


class Linker:
    """Links or writes files into a folder that is, or will become, the prefix."""

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._made = {folder}

    def make(self, targets: "Iterable[TargetFile]") -> None:
        """Put files in their places, replacing what is there, unless the builder is asked to end.

        Raises:
            PackageDamaged: A package has lost its file.
            BuildFailed: A file would be outside the environment, or the prefix is too long for it.
        """
        for target in targets:
            programs.check_stopped()
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
        if target.source:
            size = -1
            with contextlib.suppress(FileNotFoundError):
                size = os.stat(target.source).st_size
            if size != target.size:
                raise PackageDamaged(target.package)
        if target.how == LINK:
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


def _file_content(target: TargetFile, prefix: str) -> bytes:
    """Return the content of a file that is not a link; raise as `Linker.make`."""
    if target.how == WRITE:
        return target.content
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
            % (target.path, len(new), len(old)),
            stage="link",
            evidence=[prefix],
            hint="choose a shorter env_root:",
        )

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


CACHE = "__pycache__/"
_PROCESSES = 4
# A process takes time to start, so each compiles many sources.
_TOGETHER = 200
_IDLE_S = 600.0
# A program for the environment's own Python, with the paths of sources. Files that are no valid Python (templates,
# tests of other versions) are skipped, and so is what another builder is writing. Python 3.6 always writes the date.
# Its first argument is our guard: nothing checks this byte code later.
_COMPILE = """
import py_compile, sys
with open(sys.argv[1]) as file:
    exec(file.read(), {})
mode = {"invalidation_mode": py_compile.PycInvalidationMode.UNCHECKED_HASH} if sys.version_info >= (3, 7) else {}
for source in sys.argv[2:]:
    try:
        py_compile.compile(source, doraise=True, **mode)
    except (py_compile.PyCompileError, ValueError, RecursionError, MemoryError, FileExistsError):
        continue
"""
_GUARD = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "agent", "byte_code.py")


def _bytecode_path(path: str, tag: str) -> str:
    """Return where Python looks for the byte code of a source."""
    folder, name = os.path.split(path)
    return os.path.join(folder, CACHE + "%s.%s.pyc" % (name[: -len(".py")], tag))


def remove_damaged(layout: "Layout", sizes: "dict[str, int]") -> None:
    """Remove the byte code that has another size than these, so that it is compiled again: nothing compares it."""
    for target in layout.sources():
        path = _bytecode_path(target.path, layout.tag)
        made = _bytecode_path(target.source, layout.tag) if target.how == LINK else os.path.join(layout.prefix, path)
        with contextlib.suppress(FileNotFoundError):
            if path in sizes and os.stat(made).st_size != sizes[path]:
                os.unlink(made)


def compile_missing(layout: "Layout") -> "list[TargetFile]":
    """Compile sources without byte code: in the package if the file belongs to it, else in the environment.

    Return the byte code that is to be linked.
    """
    shared = [target for target in layout.sources() if target.how == LINK]
    own = [os.path.join(layout.prefix, target.path) for target in layout.sources() if target.how != LINK]
    sources = [target.source for target in shared] + own
    lacking = [path for path in sources if not os.path.exists(_bytecode_path(path, layout.tag))]
    argv = [layout.python, "-I", "-S", "-B", "-c", _COMPILE, _GUARD]

    def compile_some(at: int) -> None:
        programs.run_in_environment(argv + lacking[at : at + _TOGETHER], layout.prefix, {}, _IDLE_S)

    try:
        with ThreadPoolExecutor(_PROCESSES) as pool:
            list(pool.map(compile_some, range(0, len(lacking), _TOGETHER)))
    except programs.ProgramFailed as error:
        message = "the environment's Python cannot compile: %s" % error
        raise BuildFailed(message, stage="compile", evidence=error.evidence) from error
    found = []
    for target in shared:
        made, path = _bytecode_path(target.source, layout.tag), _bytecode_path(target.path, layout.tag)
        # Not every file in a package is valid Python.
        with contextlib.suppress(FileNotFoundError):
            found.append(target._replace(path=path, source=made, size=os.stat(made).st_size, executable=False))
    return found
