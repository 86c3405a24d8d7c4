"""The call as it lies on disk, for every process that needs it: the worker, children that multiprocessing spawns, and
further ranks, in which a framework runs the whole call once more.

PyTorch Lightning, for one, starts rank 1 by the command of the program itself, `python sys.argv[0]`. In a job that is
`call.py`, which ends in `run_again` (docs/decisions/0030). What such a process needs to know is in its environment.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from types import CoroutineType
from typing import Any

from _clusterfn_wire import container  # type: ignore[import-not-found]

from . import children
from .descriptors import out_of_reach
from .layout import BLOBS, ITEMS, PAYLOAD, STACK_SIGNAL

_PROGRAM = "call.py"
_SHIPPED = "CLUSTERFN_PAYLOAD"  # where the call is
_ROOT = "CLUSTERFN_ROOT"  # and the blobs that belong to it
_ITEM = "CLUSTERFN_ITEM"  # and where in items.pkl its arguments are
_FOLDERS = "CLUSTERFN_FOLDERS"  # of the user's modules, as JSON
_STACKS = "CLUSTERFN_STACKS"  # where to write stacks
FAILED = "CLUSTERFN_FAILED_RANK"  # where one more rank leaves its error
_RANK = "CLUSTERFN_RANK"  # set in a process that runs the call again
_SHOWN = 1000  # characters of a message
_NO_CALL = "clusterfn: this program runs the call of a job again, and this process belongs to no job"
_NO_THIRD = (
    "clusterfn: the function starts its own program (sys.argv[0]) once more, in a process that was itself started so; "
    "do that only if LOCAL_RANK is not set"
)


def become_program(worker: str) -> None:
    """Let `sys.argv` and `__main__` name what runs the call again, instead of the worker's own script."""
    program = os.path.join(os.path.dirname(os.path.abspath(worker)), _PROGRAM)
    sys.argv = [program]
    sys.modules["__main__"].__file__ = program


def tell_processes(job: str, spec: dict[str, Any], item: list[int]) -> None:
    """Put into the environment what processes that the function starts need to load the call."""
    told = {
        _SHIPPED: os.path.join(job, PAYLOAD),
        _ROOT: spec["root"],
        _ITEM: " ".join(map(str, item)),
        _FOLDERS: json.dumps(spec["sys_path"]),
    }
    os.environ.update(told)
    os.environ.pop(_RANK, None)  # of a job that called this one


def read(path: str, root: str, header: dict[str, Any], part: list[int] | None = None, read_blob: Any = None) -> Any:
    """What is in a file, or in that part of it; `header` is filled, and heeded, before anything is unpickled."""

    def heed(found: Any) -> None:
        header.update(found)
        _log_as_the_caller(found)

    return container.load(path, lambda digest: os.path.join(root, BLOBS, digest), heed, part, read_blob)


def _log_as_the_caller(header: Any) -> None:
    """Set logging up as it is where the call was made, if it was set up there."""
    if header.get("logging"):
        from _clusterfn_wire import logs

        logs.show(header["logging"])


def shipped_names() -> dict[str, Any]:
    """What a spawned child finds in its __main__: the names that travelled with the call."""
    if not os.path.exists(os.environ.get(_SHIPPED, "")):
        return {}
    return children.names_for_main(_load()[0])


def run_again() -> None:
    """Run the call once more: its value is dropped, its exception ends the process as in any script."""
    if not os.path.exists(os.environ.get(_SHIPPED, "")):
        sys.exit(_NO_CALL)
    if _RANK in os.environ:
        sys.exit(_NO_THIRD)
    os.environ[_RANK] = "1"
    speak_utf8()
    faulthandler.enable(file=out_of_reach(os.dup(2)))
    children.watch_forks()
    sys.path[:0] = json.loads(os.environ[_FOLDERS])
    function, args, kwargs = _load()
    children.fill_main(function)
    try:
        value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            import asyncio

            asyncio.run(value)
    except Exception as error:  # the function is the user's, and may raise anything
        _tell_failure(error)
        raise


def _tell_failure(error: Exception) -> None:
    """Leave a line for the supervisor: rank 0 often fails next, by an error that says less."""
    from _clusterfn_wire import exceptions

    facts = exceptions.summary(error)
    rank = next((f"{name}={os.environ[name]}" for name in ("RANK", "LOCAL_RANK") if name in os.environ), "no RANK")
    line = f"{rank}: {facts['type']}: {facts['message'][:_SHOWN]}"
    try:
        fd = os.open(os.environ[FAILED], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:  # another rank was first, or the disk is full
        return
    with open(fd, "w", encoding="utf-8", errors="replace") as file:
        file.write(line)


def _load() -> tuple[Any, Any, Any]:
    """The call, in a process that the function has started."""
    if os.path.exists(os.environ.get(_STACKS, "")):
        show_stacks(os.environ[_STACKS])
    path, root = os.environ[_SHIPPED], os.environ[_ROOT]
    sys.meta_path.append(children.LastResort())
    function, args, kwargs = read(path, root, {}, read_blob=container.map_blob)
    item = [int(number) for number in os.environ[_ITEM].split()]
    if item:
        args = read(os.path.join(os.path.dirname(path), ITEMS), root, {}, item, container.map_blob)
    return function, args, kwargs


def speak_utf8() -> None:
    """Whole lines, and a bar's carriage returns, at once; never an error because of a character."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # children only: it would tear each print here into several writes


def show_stacks(path: str) -> None:
    """Let a signal write the stack of every thread, here, in what is forked, and in processes that load the call."""
    fd = out_of_reach(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    faulthandler.register(getattr(signal, STACK_SIGNAL), file=fd)
    os.environ[_STACKS] = path
