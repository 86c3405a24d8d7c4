"""What a function and processes that it starts find: clusterfn, and in `__main__` the names that came with the call.

Whatever multiprocessing pickles by name is looked for there, in the worker and in its spawned children. Also says when
a fork follows CUDA, which does not survive one. Loads nothing and decides nothing.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

_FORKED = (
    "clusterfn: a process is forked although CUDA is in use here. That is right only if it does not use CUDA itself, "
    "as workers of a DataLoader; else it fails or hangs: start it by multiprocessing.get_context('spawn')\n"
)
_DEEPEST = 100


def _bridge() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class LastResort:
    """Finds `clusterfn` itself for functions that import it, where the environment does not have it."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """The module's spec, if it is `clusterfn`."""
        if name != "clusterfn":
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [os.path.join(_bridge(), "library")])


def fill_main(function: Any) -> None:
    """Put what travelled by value into __main__, whatever of clusterfn's own stands there under these names."""
    vars(sys.modules["__main__"]).update(names_for_main(function))


def names_for_main(function: Any) -> dict[str, Any]:
    """The names of the caller's `__main__` that came with the call: its function's globals, and all else by value."""
    from _clusterfn_wire import pickler  # type: ignore[import-not-found]

    return {**pickler.of_main(), **dict(_names_of(function))}


def _names_of(function: Any) -> Iterator[tuple[str, Any]]:
    function = innermost(function)
    if getattr(function, "__module__", None) != "__main__":
        return
    owned = getattr(function, "__globals__", {})
    yield from ((name, value) for name, value in owned.items() if not name.startswith("__"))
    if hasattr(function, "__name__"):
        yield function.__name__, function


def innermost(function: Any) -> Any:
    """What partials and decorators stand around; of a proxy that has any name there is no end to them."""
    for _ in range(_DEEPEST):
        inner = getattr(function, "func", None) or getattr(function, "__wrapped__", None)
        if not callable(inner):
            break
        function = inner
    return function


def tell_own_end(say: Callable[..., None]) -> None:
    """Say it before Python code in this process sends a signal to this process or its group.

    The kernel tells who was killed, but not by whom. An audit hook would see the same, and slow down every `id()`.
    """

    def watched(name: str, own: Callable[[], tuple[int, ...]]) -> None:
        send = getattr(os, name)

        @functools.wraps(send)
        def told(target: int, number: int) -> None:
            if target in own():
                code, line = (frame := sys._getframe(1)).f_code, frame.f_lineno
                say(own_signal=int(number), sender=f"os.{name} in {code.co_name}, {code.co_filename}:{line}")
            send(target, number)

        for module in (os, sys.modules[send.__module__]):  # its own module too, so that it is still found by its name
            setattr(module, name, told)

    watched("kill", lambda: (os.getpid(), 0, -os.getpgrp()))
    watched("killpg", lambda: (0, os.getpgrp()))


def watch_forks() -> None:
    """Say on stderr, once, that a process is forked after PyTorch has used CUDA."""
    told: list[int] = []

    def before() -> None:
        is_initialized = getattr(sys.modules.get("torch.cuda"), "is_initialized", None)
        if not told and is_initialized is not None and is_initialized():
            told.append(os.getpid())
            sys.stderr.write(_FORKED)

    os.register_at_fork(before=before)
