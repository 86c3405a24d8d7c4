"""Whether a file is being imported, and so must not call a decorated function: each import would call it once more.

A command imports the file of its target, a job the modules of its call, and a spawned process its parent's program.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from clusterfn.errors import ConfigError

_UNGUARDED = 'put the call under `if __name__ == "__main__":`'
# The file that a command is importing now; None if there is none.
imported: Path | None = None


@contextlib.contextmanager
def importing(file: Path) -> Iterator[None]:
    """Reject calls that would be sent from here meanwhile."""
    global imported
    imported = file
    try:
        yield
    finally:
        imported = None


def reject_call() -> None:
    """Reject a call while a command imports its target, or a new process its parent's program, with a ConfigError."""
    if imported is not None:
        raise ConfigError(f"{imported} calls a decorated function while it is imported", hint=_UNGUARDED)
    # Python itself uses this attribute to reject the start of another process at this point.
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and getattr(processes.current_process(), "_inheriting", False):
        message = "this process was started to help another one, and the program that it imports calls again"
        raise ConfigError(message, hint=_UNGUARDED)


def reject_sending_in_job(call: str, instead: str) -> NoReturn:
    """Reject what would send a job from inside a job.

    Args:
        call: What was called, as "train.submit()".
        instead: What to do instead.

    Raises:
        ConfigError: As `reject_call_in_job`.
        RuntimeError: Otherwise.
    """
    reject_call_in_job(call)
    raise RuntimeError(f"{call} inside a job: {instead}")


def reject_call_in_job(call: str, to_repeat: str = "") -> None:
    """Reject a call inside a job that a module makes while it is imported: every process of the job would repeat it.

    Args:
        call: What was called.
        to_repeat: What to call for that at each import.

    Raises:
        ConfigError: It is.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        scope = frame.f_globals
        is_imported = scope.get("__name__") == "__mp_main__" or getattr(scope.get("__spec__"), "_initializing", False)
        if frame.f_code.co_name == "<module>" and is_imported:
            where = f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"
            repeat = f"; to run it at each import, write {to_repeat}" if to_repeat else ""
            raise ConfigError(f"{where}, uses {call} while a job imports it", hint=f"{_UNGUARDED}{repeat}")
        frame = frame.f_back
