"""Byte code: what conda packages bring is made independent of dates, what is missing is compiled once for each package.

A .pyc names the date and size of its source, and would be stale once files are dated by the build; Python would then
compile at every start, and write into an environment that others use. "Unchecked" byte code (PEP 552) asks for
nothing. Measured: `import torch` takes 3.0 s without byte code, 1.2 s with it; compiling its 2371 files once takes 5
to 7 s.
"""

import json
import os
import struct
import subprocess
import tempfile

from .failure import Failed
from .place import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping

    from .archives import Member
    from .place import Layout

_CACHE = "__pycache__/"
_UNCHECKED = struct.pack("<LQ", 1, 0)
_PROCESSES = 4
_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compiling.py")


def settle(folder: str, members: "Mapping[str, Member]") -> "set[str]":
    """Make the byte code of an unpacked package independent of dates; the paths of what is stale, and must go."""
    return {path for path in members if path.endswith(".pyc") and not _settled(folder, path, members)}


def _settled(folder: str, path: str, members: "Mapping[str, Member]") -> bool:
    source = members.get(source_of(path))
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


def source_of(path: str) -> str:
    """`a/b.py` for `a/__pycache__/b.cpython-311.pyc`; empty for byte code of another kind."""
    folder, _, name = path.rpartition(_CACHE)
    return folder + name.split(".")[0] + ".py" if name.count(".") == 2 else ""


def compiled(path: str, tag: str) -> str:
    """Where Python looks for the byte code of a source."""
    folder, name = os.path.split(path)
    return os.path.join(folder, _CACHE + "%s.%s.pyc" % (name[: -len(".py")], tag))


def compile_missing(layout: "Layout", prefix: str, token: str, stopping: "Callable[[], None]") -> "list[Target]":
    """Compile what has no byte code: into the package if the file is the package's own, else into the environment.

    Args:
        layout: Everything in the environment.
        prefix: Where the environment's files are now.
        token: The builder's, for the names of folders aside.
        stopping: Called now and then; may raise.

    Returns:
        The byte code that is to be linked.
    """
    missing = [each for each in layout.sources() if compiled(each.path, layout.tag) not in layout.targets]
    shared = [each for each in missing if each.how == "link"]
    packages = sorted({each.package for each in shared if not os.path.isdir(_cache(each, layout.tag))})
    aside = {package: os.path.join(package, ".pyc-" + token) for package in packages}
    for folder in aside.values():
        os.makedirs(folder, exist_ok=True)
    work = [
        (each.source, os.path.join(aside[each.package], each.inside + "c")) for each in shared if each.package in aside
    ]
    work += [
        (os.path.join(prefix, each.path), os.path.join(prefix, compiled(each.path, layout.tag)))
        for each in missing
        if each.how != "link"
    ]
    _run(os.path.join(prefix, "bin", "python"), work, stopping)
    for package, folder in aside.items():
        _keep(folder, os.path.join(package, "pyc-" + layout.tag))
    return [found for found in (_linked(each, layout.tag) for each in shared) if found is not None]


def _cache(target: Target, tag: str) -> str:
    return os.path.join(target.package, "pyc-" + tag)


def _keep(folder: str, name: str) -> None:
    try:
        os.rename(folder, name)
    except OSError:  # another builder was faster
        if not os.path.isdir(name):
            raise


def _linked(target: Target, tag: str) -> "Target | None":
    source = os.path.join(_cache(target, tag), target.inside + "c")
    try:
        size = os.stat(source).st_size
    except FileNotFoundError:  # not every file in a package is valid Python
        return None
    return target._replace(path=compiled(target.path, tag), source=source, size=size, executable=False)


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
        raise Failed("the environment's Python cannot compile: %s" % python, stage="compile")


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
