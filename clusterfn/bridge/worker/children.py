"""Prepare what the function and its child processes find: clusterfn, and the caller's names in `__main__`.

multiprocessing pickles functions by name and looks for them in `__main__`, in the worker and in spawned children.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from ..attributes import attribute

_DEEPEST = 100


class LibraryFinder:
    """Finds `clusterfn` in the bridge for functions that import it, if the environment does not have it."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """The module's spec, if it is `clusterfn`."""
        if name != "clusterfn":
            return None
        from importlib.machinery import PathFinder

        bridge = os.path.abspath(__file__)
        # The path of this file is <bridge>/_clusterfn/bridge/worker/children.py.
        for _ in range(4):
            bridge = os.path.dirname(bridge)
        return PathFinder.find_spec(name, [os.path.join(bridge, "library")])


def fill_main(function: Any) -> None:
    """Put what travelled by value into `__main__`, over clusterfn's own names there."""
    vars(sys.modules["__main__"]).update(names_for_main(function))


def names_for_main(function: Any) -> dict[str, Any]:
    """Return the names of the caller's `__main__`: the function's globals, and all else that travelled by value."""
    from _clusterfn_wire import classes  # type: ignore[import-not-found]

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
