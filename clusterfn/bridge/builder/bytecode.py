"""Make the byte code of conda packages independent of dates, and compile what is missing once for each package.

A .pyc holds the date and size of its source, and would be stale once the build sets the dates of files. Python would
then compile at every start, and write into an environment that others use. "Unchecked" byte code (PEP 552) is never
compared. Measured: `import torch` takes 3.0 s without byte code and 1.2 s with it; compiling its 2371 files takes 5 to
7 s once.
"""

import json
import os
import struct
import subprocess
import tempfile

from .errors import BuildFailed
from .layouts import TargetFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping

    from .archives import Member
    from .layouts import Layout

_CACHE = "__pycache__/"
_UNCHECKED = struct.pack("<LQ", 1, 0)
_PROCESSES = 4
_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compile_files.py")


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

    Args:
        layout: Everything in the environment.
        prefix: Where the environment's files are now.
        token: The builder's, for the names of temporary folders.
        stopping: Called now and then; may raise.

    Returns:
        The byte code that is to be linked.
    """
    missing = [each for each in layout.sources() if bytecode_path(each.path, layout.tag) not in layout.targets]
    shared = [each for each in missing if each.how == "link"]
    packages = sorted({each.package for each in shared if not os.path.isdir(_cache(each, layout.tag))})
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
        _keep(folder, os.path.join(package, "pyc-" + layout.tag))
    return [found for found in (_linked(each, layout.tag) for each in shared) if found is not None]


def _cache(target: TargetFile, tag: str) -> str:
    return os.path.join(target.package, "pyc-" + tag)


def _keep(folder: str, name: str) -> None:
    try:
        os.rename(folder, name)
    except OSError:  # another builder was faster
        if not os.path.isdir(name):
            raise


def _linked(target: TargetFile, tag: str) -> "TargetFile | None":
    source = os.path.join(_cache(target, tag), target.inside + "c")
    try:
        size = os.stat(source).st_size
    except FileNotFoundError:  # not every file in a package is valid Python
        return None
    return target._replace(path=bytecode_path(target.path, tag), source=source, size=size, executable=False)


def _run(python: str, work: "list[tuple[str, str]]", stopping: "Callable[[], None]") -> None:
    """Compile in a few processes of the environment's own Python."""
    count = min(_PROCESSES, os.cpu_count() or 1, 1 + len(work) // 200)
    running = [_start(python, work[number::count]) for number in range(count) if work]
    try:
        while any(process.poll() is None for process in running):
            stopping()
            _settle_down(running)
    finally:
        for process in running:
            process.kill()
            process.wait()
    if any(process.returncode for process in running):
        raise BuildFailed("the environment's Python cannot compile: %s" % python, stage="compile")


def _settle_down(running: "list[subprocess.Popen[bytes]]") -> None:
    try:
        next(process for process in running if process.poll() is None).wait(0.2)
    except (subprocess.TimeoutExpired, StopIteration):
        return


def _start(python: str, work: "list[tuple[str, str]]") -> "subprocess.Popen[bytes]":
    with tempfile.TemporaryFile() as given:
        given.write(json.dumps(work).encode())
        given.seek(0)
        return subprocess.Popen([python, "-I", "-S", "-B", _SCRIPT], stdin=given)
