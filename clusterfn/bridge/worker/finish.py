"""End a process that was forked for a call: what an interpreter does at its end, but for taking down what was loaded.

An interpreter clears each module at its end. In a fork this copies most pages of its memory, and takes longer than a
short call. It is of use only to what the call itself has left or loaded.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import stat
import sys
from typing import Any, NoReturn

from . import outputs
from .loaded_modules import has_loaded_native_code

# A metaclass may answer for its classes' attributes, and is not asked.
_bases = type.__dict__["__mro__"].__get__
_attributes = type.__dict__["__dict__"].__get__
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def end_item(last: str) -> None:
    """End this process, or return if only the end of the interpreter does all that is due.

    Args:
        last: The module that was loaded last before the call.
    """
    if not (has_loaded_native_code(last) or _leaves_finalizers()):
        run_exit_functions()
        # Threads and exit functions may have loaded and left more.
        if not (has_loaded_native_code(last) or _leaves_finalizers()):
            end_process()


def run_exit_functions() -> None:
    """Wait for the threads that are to end by themselves, and run the exit functions, whatever they raise."""
    if "threading" in sys.modules:
        with contextlib.suppress(BaseException):
            sys.modules["threading"]._shutdown()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()


def end_process() -> NoReturn:
    """Write what the call's open files still hold, and end this process, whose exit functions have run."""
    outputs.flush()
    # Objects from before the fork are not among them.
    for each in gc.get_objects():
        if type(each) in _FILES:
            with contextlib.suppress(OSError, ValueError):
                # A pipe may have no reader any more.
                if stat.S_ISREG(os.fstat(each.fileno()).st_mode):
                    each.flush()
    os._exit(0)


def _leaves_finalizers() -> bool:
    """Whether something is left that acts when it is removed. What was there before the fork is not looked at."""
    kinds: dict[int, Any] = {id(type(each)): type(each) for each in gc.get_objects()}
    return any("__del__" in _attributes(base) for kind in kinds.values() for base in _bases(kind))
