"""End a process that has run a call and reported: one order of steps, whether it was started or forked for the call.

It waits for threads, runs exit functions, writes what is buffered, and removes what the call has left, as an
interpreter does at its end. That also clears each module: in a fork this copies most pages of its memory, and takes
longer than a short call. So a fork removes only what the call itself has left: what came after the module that was
loaded last before the call. Sessions ask here, too, which modules a call has loaded.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import itertools
import os
import stat
import sys
from types import FunctionType, ModuleType
from typing import Any

from ..agent.libc import libc_function
from .descriptors import flush_output

# A metaclass may answer for its classes' attributes, and is not asked.
_bases = type.__dict__["__mro__"].__get__
_attributes = type.__dict__["__dict__"].__get__
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
# The finalizers of other objects use these.
_CODE = (type, FunctionType, ModuleType)
# The function may replace `sys.modules`.
_modules = sys.modules
_NATIVE = (".so", ".pyd")


def end(last: str = "", is_of_runner: bool = False) -> None:
    """End this process, or return if the end of its interpreter does the rest.

    The supervisor ends what takes longer than the grace period.

    Args:
        last: In a fork, the module that was loaded last before the call; "" in a process that was started for it.
        is_of_runner: Whether it is a fork of a session's runner, whose frames its interpreter would unwind.
    """
    _run_exit_functions()
    leaves_finalizers = bool(last) and _leaves_finalizers()
    if not last or not is_of_runner and (leaves_finalizers or _has_loaded_native_code(last)):
        return
    flush_output()
    # Files have finalizers.
    if leaves_finalizers:
        _flush_files()
        _remove_what_is_left(last)
    # The C library has buffers of its own.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        libc_function("fflush")(None)
    os._exit(0)


def _run_exit_functions() -> None:
    """Wait for the threads that are to end by themselves, and run the exit functions, whatever they raise."""
    if "threading" in sys.modules:
        with contextlib.suppress(BaseException):
            sys.modules["threading"]._shutdown()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()


def _flush_files() -> None:
    """Write what the call's open files still hold."""
    # Objects from before the fork are not among them.
    for obj in gc.get_objects():
        if type(obj) in _FILES:
            with contextlib.suppress(OSError, ValueError):
                # A pipe may have no reader any more.
                if stat.S_ISREG(os.fstat(obj.fileno()).st_mode):
                    obj.flush()


def _remove_what_is_left(last: str) -> None:
    """Remove the objects of the call, so that their finalizers run while all that they use is still there."""
    # The function may have put anything in the place of the module.
    with contextlib.suppress(Exception):
        main = vars(sys.modules["__main__"])
        names = [name for name in main if not name.startswith("__")]
        for name in sorted(names, key=lambda name: issubclass(type(main[name]), _CODE)):
            del main[name]
    _forget_own(last)
    gc.collect()
    flush_output()
    _flush_files()


def _leaves_finalizers() -> bool:
    """Whether something is left that acts when it is removed. What was there before the fork is not looked at."""
    kinds: dict[int, Any] = {id(type(obj)): type(obj) for obj in gc.get_objects()}
    return any("__del__" in _attributes(base) for kind in kinds.values() for base in _bases(kind))


def last_loaded() -> str:
    """Return which module was loaded last. To look at all of them would copy the pages of their names."""
    return next(reversed(_modules))


def _names_since(last: str) -> list[str] | None:
    """Return the modules that were loaded after that one; None if a thread loads more at this moment."""
    try:
        names = list(itertools.takewhile(lambda name: name != last, reversed(_modules)))
    except RuntimeError:
        return None
    return [name for name in names if isinstance(name, str)]


def _has_loaded_native_code(last: str) -> bool:
    """Whether code that is not Python's was loaded after that module, which may act when it is taken down."""
    names = _names_since(last)
    # Through `ctypes`, a call loads any library.
    return names is None or "ctypes" in names or any(str(_file_of(name)).endswith(_NATIVE) for name in names)


def _forget_own(last: str) -> None:
    """Forget the modules of the user's own that were loaded after that one: what they hold can be removed then."""
    for name in _names_since(last) or ():
        file = _file_of(name)
        if isinstance(file, str) and file.endswith(".py") and not is_installed(file):
            _modules.pop(name, None)


def loaded_since(last: str) -> list[str]:
    """Return the top-level modules that were loaded after that one, from the environment.

    That is asked where they are: under the name of a user's own module, another process would find another.
    """
    tops = {name.partition(".")[0] for name in _names_since(last) or ()}
    return sorted(name for name in tops if is_installed(_file_of(name)))


def is_installed(file: object) -> bool:
    """Whether it is the environment's own: the user's modules may be others at the next call."""
    return isinstance(file, str) and file.startswith(sys.prefix + os.sep)


def _file_of(name: str) -> object:
    """Return the file from which a module was loaded. Anything may be in the place of a module; that is not asked."""
    module = _modules.get(name)
    facts = vars(module) if issubclass(type(module), ModuleType) else {}
    return getattr(facts.get("__spec__"), "origin", None) or facts.get("__file__")
