"""Make the byte code of conda packages independent of dates, and compile what is missing once for each package.

A .pyc holds the date and size of its source, and would be stale once the build sets the dates of files. Python would
then compile at every start, and write into an environment that others use. "Unchecked" byte code (PEP 552) is never
compared. Measured: `import torch` takes 3.0 s without byte code and 1.2 s with it; compiling its 2371 files takes 5 to
7 s once.
"""

import contextlib
import json
import os
import struct
import subprocess
import tempfile

from .errors import BuildFailed
from .link import TargetFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping

    from .archives import Member
    from .link import Layout

_CACHE = "__pycache__/"
_UNCHECKED = struct.pack("<LQ", 1, 0)
_PROCESSES = 4
# A program for the environment's own Python: stdin is JSON pairs of a source and its byte code. Files that are no valid
# Python (templates, tests of other versions) are skipped. Python 3.6 always writes the date.
_COMPILE = """
import json, os, py_compile, sys
mode = {"invalidation_mode": py_compile.PycInvalidationMode.UNCHECKED_HASH} if sys.version_info >= (3, 7) else {}
for source, target in json.load(sys.stdin):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        py_compile.compile(source, cfile=target, dfile=source, doraise=True, **mode)
    except (py_compile.PyCompileError, ValueError, RecursionError, MemoryError):
        continue
"""


def remove_dates(folder: str, members: "Mapping[str, Member]") -> "set[str]":
    """Make the byte code of an unpacked package independent of dates; return the stale files, which must go."""
    return {path for path in members if path.endswith(".pyc") and not _settled(folder, path, members)}


def _settled(folder: str, path: str, members: "Mapping[str, Member]") -> bool:
    source = members.get(source_path(path))
    if source is None:
        return _CACHE not in path  # a module without a source is loaded as it is
    with open(os.path.join(folder, path), "r+b") as file:
        header = file.read(16)
        if len(header) < 16:
            return False
        flags, mtime, size = struct.unpack("<LLL", header[4:])
        if flags:
            return bool(flags == 1)
        if (mtime, size) != (source.mtime & 0xFFFFFFFF, source.size & 0xFFFFFFFF):
            return False
        file.seek(4)
        file.write(_UNCHECKED)
    return True


def source_path(path: str) -> str:
    """Return `a/b.py` for `a/__pycache__/b.cpython-311.pyc`; "" for byte code of another kind."""
    folder, _, name = path.rpartition(_CACHE)
    return folder + name.split(".")[0] + ".py" if name.count(".") == 2 else ""


def bytecode_path(path: str, tag: str) -> str:
    """Return where Python looks for the byte code of a source."""
    folder, name = os.path.split(path)
    return os.path.join(folder, _CACHE + "%s.%s.pyc" % (name[: -len(".py")], tag))


def compile_missing(layout: "Layout", prefix: str, token: str, stopping: "Callable[[], None]") -> "list[TargetFile]":
    """Compile sources without byte code: into the package if the file belongs to it, else into the environment.

    `prefix` is where the environment's files are now. Return the byte code that is to be linked.
    """
    missing = [each for each in layout.sources() if bytecode_path(each.path, layout.tag) not in layout.targets]
    shared = [each for each in missing if each.how == "link"]
    cache = "pyc-" + layout.tag
    packages = sorted({each.package for each in shared if not os.path.isdir(os.path.join(each.package, cache))})
    aside = {package: os.path.join(package, ".pyc-" + token) for package in packages}
    for folder in aside.values():
        os.makedirs(folder, exist_ok=True)
    work = [
        (each.source, os.path.join(aside[each.package], each.inside + "c")) for each in shared if each.package in aside
    ]
    work += [
        (os.path.join(prefix, each.path), os.path.join(prefix, bytecode_path(each.path, layout.tag)))
        for each in missing
        if each.how != "link"
    ]
    _run(os.path.join(prefix, "bin", "python"), work, stopping)
    for package, folder in aside.items():
        try:
            os.rename(folder, os.path.join(package, cache))
        except OSError:  # another builder was faster
            if not os.path.isdir(os.path.join(package, cache)):
                raise
    found = []
    for each in shared:
        source = os.path.join(each.package, cache, each.inside + "c")
        with contextlib.suppress(FileNotFoundError):  # not every file in a package is valid Python
            path, size = bytecode_path(each.path, layout.tag), os.stat(source).st_size
            found.append(each._replace(path=path, source=source, size=size, executable=False))
    return found


def _run(python: str, work: "list[tuple[str, str]]", stopping: "Callable[[], None]") -> None:
    count = min(_PROCESSES, os.cpu_count() or 1, 1 + len(work) // 200)
    running = []
    for number in range(count if work else 0):
        with tempfile.TemporaryFile() as given:
            given.write(json.dumps(work[number::count]).encode())
            given.seek(0)
            running.append(subprocess.Popen([python, "-I", "-S", "-B", "-c", _COMPILE], stdin=given))
    try:
        while any(process.poll() is None for process in running):
            stopping()
            with contextlib.suppress(subprocess.TimeoutExpired, StopIteration):
                next(process for process in running if process.poll() is None).wait(0.2)
    finally:
        for process in running:
            process.kill()
            process.wait()
    if any(process.returncode for process in running):
        raise BuildFailed("the environment's Python cannot compile: %s" % python, stage="compile")
