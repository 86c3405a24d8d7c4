"""Compile the modules of each package once, beside its files, for all environments that have it.

A .pyc holds the date and size of its source, and would be stale once the build sets the dates of files. Python would
then compile at every start, and write into an environment that others use. So what packages bring is left out, and
byte code is made here that is never compared ("unchecked", PEP 552). Measured: `import torch` takes 3.0 s without byte
code and 1.2 s with it; compiling its 2371 files takes 5 to 7 s once.
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

from . import programs
from .errors import BuildFailed
from .link import LINK, Layout, TargetFile

CACHE = "__pycache__/"
_PROCESSES = 4
# A process takes time to start, so each compiles many sources.
_TOGETHER = 200
_IDLE_S = 600.0
# A program for the environment's own Python, with the paths of sources. Files that are no valid Python (templates,
# tests of other versions) are skipped, and so is what another builder is writing. Python 3.6 always writes the date.
_COMPILE = """
import py_compile, sys
mode = {"invalidation_mode": py_compile.PycInvalidationMode.UNCHECKED_HASH} if sys.version_info >= (3, 7) else {}
for source in sys.argv[1:]:
    try:
        py_compile.compile(source, doraise=True, **mode)
    except (py_compile.PyCompileError, ValueError, RecursionError, MemoryError, FileExistsError):
        continue
"""


def bytecode_path(path: str, tag: str) -> str:
    """Return where Python looks for the byte code of a source."""
    folder, name = os.path.split(path)
    return os.path.join(folder, CACHE + "%s.%s.pyc" % (name[: -len(".py")], tag))


def remove_damaged(layout: "Layout", sizes: "dict[str, int]") -> None:
    """Remove the byte code that has another size than these, so that it is compiled again: nothing compares it."""
    for each in layout.sources():
        path = bytecode_path(each.path, layout.tag)
        made = bytecode_path(each.source, layout.tag) if each.how == LINK else os.path.join(layout.prefix, path)
        with contextlib.suppress(FileNotFoundError):
            if path in sizes and os.stat(made).st_size != sizes[path]:
                os.unlink(made)


def compile_missing(layout: "Layout") -> "list[TargetFile]":
    """Compile sources without byte code: in the package if the file belongs to it, else in the environment.

    Return the byte code that is to be linked.
    """
    shared = [each for each in layout.sources() if each.how == LINK]
    own = [os.path.join(layout.prefix, each.path) for each in layout.sources() if each.how != LINK]
    sources = [each.source for each in shared] + own
    lacking = [path for path in sources if not os.path.exists(bytecode_path(path, layout.tag))]
    argv = [layout.python, "-I", "-S", "-B", "-c", _COMPILE]

    def compile_some(at: int) -> None:
        programs.run_in_environment(argv + lacking[at : at + _TOGETHER], layout.prefix, {}, _IDLE_S)

    try:
        with ThreadPoolExecutor(_PROCESSES) as pool:
            list(pool.map(compile_some, range(0, len(lacking), _TOGETHER)))
    except programs.ProgramFailed as error:
        message = "the environment's Python cannot compile: %s" % error
        raise BuildFailed(message, stage="compile", evidence=error.evidence) from error
    found = []
    for each in shared:
        made, path = bytecode_path(each.source, layout.tag), bytecode_path(each.path, layout.tag)
        # Not every file in a package is valid Python.
        with contextlib.suppress(FileNotFoundError):
            found.append(each._replace(path=path, source=made, size=os.stat(made).st_size, executable=False))
    return found
