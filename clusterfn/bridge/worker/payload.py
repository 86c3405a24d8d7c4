"""Load the call from payload.pkl: in the worker, in children that multiprocessing spawns, and in further ranks.

A framework may run the whole call again in further ranks: PyTorch Lightning starts rank 1 by the command of the program
itself, `python sys.argv[0]`. In a job that is `call.py`, which calls `run_again` (docs/decisions/0030). Such a process
finds the call by environment variables.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import signal
import sys
from collections.abc import Iterator
from types import CoroutineType, ModuleType
from typing import Any

from _clusterfn_wire import container, references  # type: ignore[import-not-found]

from ..attributes import attribute
from ..layout import BLOBS, ITEMS, PAYLOAD, SPEC, STACK_SIGNAL
from ..supervisor.text import native
from .descriptors import out_of_reach

_PROGRAM = "call.py"
# Processes that the function starts find the call by these variables: its path, the root with the blobs that belong to
# it, the place of its arguments in items.pkl, and the folders of the user's modules, as JSON.
_PAYLOAD, _ROOT = "CLUSTERFN_PAYLOAD", "CLUSTERFN_ROOT"
_ITEM, FOLDERS = "CLUSTERFN_ITEM", "CLUSTERFNFOLDERS"
# The path of the file for stacks is in this variable.
_STACKS = "CLUSTERFN_STACKS"
# This variable is set in a process that runs the call again.
_RANK = "CLUSTERFN_RANK"
# This variable is set where the call has constructed an actor, whose methods run now.
_CONSTRUCTED = "CLUSTERFN_CONSTRUCTED"
# The encoding of stdout and stderr, what becomes of other characters, and whether each line is written at once.
_TEXT = ("utf-8", "backslashreplace", True)
_DEEPEST = 100
_NO_CALL = "clusterfn: this program runs the call of a job again, and this process belongs to no job"
_NO_THIRD = (
    "clusterfn: the function starts its own program (sys.argv[0]) once more, in a process that was itself started so; "
    "do that only if LOCAL_RANK is not set"
)
_NO_METHOD = (
    "clusterfn: a method of an actor starts its own program (sys.argv[0]) once more, which would construct the actor "
    "again and not call the method; make it a function, and send it with session.call(f, …)"
)


@functools.lru_cache(maxsize=1)
def read_spec(job: str) -> Any:
    """Return the spec of the job in this folder. What forks workers has read it before, as it is the same for all."""
    with open(os.path.join(job, SPEC), encoding="utf-8") as file:
        return native(json.load(file))


def read_ahead(job: str) -> None:
    """Read a small payload of the job in this folder for the processes that are forked from this one."""
    # Who loads it reports what is wrong with it.
    with contextlib.suppress(OSError):
        container.read_ahead(os.path.join(job, PAYLOAD))


def enter(cwd: str) -> None:
    """Go to the working directory of a call, and say so as a shell does: the shell of job.sh was in another one."""
    os.chdir(cwd)
    os.environ["PWD"] = cwd


def become_program(worker: str) -> None:
    """Let `sys.argv` and `__main__` name call.py, which runs the call again, instead of the worker's own script."""
    program = os.path.join(os.path.dirname(os.path.abspath(worker)), _PROGRAM)
    sys.argv = [program]
    sys.modules["__main__"].__file__ = program


def export_call(job: str, spec: dict[str, Any], item: list[int]) -> None:
    """Put into the environment where processes that the function starts find the call."""
    variables = {
        _PAYLOAD: os.path.join(job, PAYLOAD),
        _ROOT: spec["root"],
        _ITEM: " ".join(map(str, item)),
        FOLDERS: json.dumps(spec["sys_path"]),
    }
    os.environ.update(variables)
    # These variables are left over from a job that has made this call.
    for name in (_RANK, _CONSTRUCTED):
        os.environ.pop(name, None)


def forbid_again() -> None:
    """Let processes that start the program again from now on say that they cannot: the call is over."""
    os.environ[_CONSTRUCTED] = "1"


def load_payload(
    path: str,
    root: str,
    header: dict[str, Any],
    part: list[int] | None = None,
    read_blob: Any = None,
    has_words: bool = False,
) -> Any:
    """Load a file, or a part of it. Fill `header`, and set up logging and `sys.argv` by it before unpickling.

    The settings of libraries come after that: a script has mostly imported its modules before it sets something.

    Args:
        has_words: Whether `sys.argv` is to stay as it is.
    """

    def on_header(found: Any) -> None:
        header.update(found)
        # Logging is configured as where the call was made.
        if found.get("logging"):
            from _clusterfn_wire import logs

            logs.show(found["logging"])
        # The function, and modules while they are imported, parse the command line of the script. The next call of an
        # actor finds the words there.
        if len(sys.argv) == 1 and not has_words:
            sys.argv += found.get("argv", ())

    loaded = container.load(path, lambda digest: os.path.join(root, BLOBS, digest), on_header, part, read_blob)
    if part is None and (header.get("settings") or "_clusterfn_wire.settings" in sys.modules):
        from _clusterfn_wire import settings

        settings.apply(header.get("settings", {}))
    return loaded


def names_for_spawned_main() -> dict[str, Any]:
    """Return what a spawned child finds in its `__main__`: the names that travelled with the call."""
    if not os.path.exists(os.environ.get(_PAYLOAD, "")):
        return {}
    references.load_nothing()
    return names_for_main(_load_call()[0])


def run_again() -> None:
    """Run the call again: its value is dropped, its exception ends the process as in any script."""
    if not os.path.exists(os.environ.get(_PAYLOAD, "")):
        sys.exit(_NO_CALL)
    if _RANK in os.environ:
        sys.exit(_NO_THIRD)
    if _CONSTRUCTED in os.environ:
        sys.exit(_NO_METHOD)
    os.environ[_RANK] = "1"
    use_utf8()
    faulthandler.enable(file=out_of_reach(os.dup(2)))
    sys.path[:0] = json.loads(os.environ[FOLDERS])
    function, args, kwargs = _load_call()
    fill_main(function)
    value = function(*args, **kwargs)
    if type(value) is CoroutineType:
        import asyncio

        asyncio.run(value)


def _load_call() -> tuple[Any, Any, Any]:
    """Load the call in a process that the function has started."""
    if os.path.exists(os.environ.get(_STACKS, "")):
        dump_stacks_on_signal(os.environ[_STACKS])
    path, root = os.environ[_PAYLOAD], os.environ[_ROOT]
    sys.meta_path.append(LibraryFinder())
    # The function has started this process with the words that it is to have, which may be none.
    function, args, kwargs = load_payload(path, root, {}, read_blob=container.map_blob, has_words=True)
    item = [int(number) for number in os.environ[_ITEM].split()]
    if item:
        args = load_payload(os.path.join(os.path.dirname(path), ITEMS), root, {}, item, container.map_blob)
    return function, args, kwargs


def use_utf8() -> None:
    """Make stdout and stderr UTF-8 and line buffered, so that no character raises an error."""
    for stream in (sys.stdout, sys.stderr):
        # A template has done so for its workers.
        if (stream.encoding, stream.errors, stream.line_buffering) != _TEXT:
            encoding, errors, line_buffering = _TEXT
            stream.reconfigure(encoding=encoding, errors=errors, line_buffering=line_buffering)  # type: ignore[union-attr]
    # This is for children only: it would tear each print here into several writes.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")


def dump_stacks_on_signal(path: str) -> None:
    """Let a signal write the stacks of all threads, also in forks and in processes that load the call."""
    fd = out_of_reach(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    faulthandler.register(getattr(signal, STACK_SIGNAL), file=fd)
    os.environ[_STACKS] = path


# What the function and its child processes find: clusterfn, and the caller's names in `__main__`. multiprocessing
# pickles functions by name and looks for them there, in the worker and in spawned children.
class LibraryFinder:
    """Finds `clusterfn` in the bridge for functions that import it, if the environment does not have it."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """The module's spec, if it is `clusterfn`."""
        if name != "clusterfn":
            return None
        from importlib.machinery import PathFinder

        bridge = os.path.abspath(__file__)
        # The path of this file is <bridge>/_clusterfn/bridge/worker/payload.py.
        for _ in range(4):
            bridge = os.path.dirname(bridge)
        return PathFinder.find_spec(name, [os.path.join(bridge, "library")])


def fill_main(function: Any) -> None:
    """Put what travelled by value into `__main__`, over clusterfn's own names there."""
    vars(sys.modules["__main__"]).update(names_for_main(function))


def names_for_main(function: Any) -> dict[str, Any]:
    """Return the names of the caller's `__main__`: the function's globals, and all else that travelled by value."""
    from _clusterfn_wire import classes

    return {**classes.of_main(), **dict(_names_of(function))}


def _names_of(function: Any) -> Iterator[tuple[str, Any]]:
    function = unwrap(function)
    if attribute(function, "__module__") != "__main__":
        return
    owned = attribute(function, "__globals__", {})
    yield from ((name, value) for name, value in owned.items() if not name.startswith("__"))
    if attribute(function, "__name__"):
        yield function.__name__, function


def unwrap(function: Any) -> Any:
    """Return the function inside partials and decorators. A proxy that has every attribute would nest for ever."""
    for _ in range(_DEEPEST):
        inner = attribute(function, "func") or attribute(function, "__wrapped__")
        if not callable(inner):
            break
        function = inner
    return function
