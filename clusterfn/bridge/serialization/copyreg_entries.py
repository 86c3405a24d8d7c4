"""What a script tells `copyreg`: how objects of a class are pickled. It counts in the job too, for what comes back."""

from __future__ import annotations

import copyreg
import sys
import types
from typing import Any

from . import classes


def of_script() -> dict[int, tuple[Any, Any]]:
    """Return the classes and functions that the script has registered, by the ids of the classes: one may have no hash.

    A module registers its own again where it is imported, with the objects of its version there.
    """
    entries = list(copyreg.dispatch_table.items())
    return {id(kind): (kind, function) for kind, function in entries if not _is_of_module(function)}


def _is_of_module(function: Any) -> bool:
    if not isinstance(function, types.FunctionType):
        return True
    module = sys.modules.get(function.__module__)
    return module is not None and function.__module__ != "__main__" and not classes.goes_by_value(module)


class WithEntries:
    """A call, and the entries that the script has registered with `copyreg`."""

    def __init__(self, whole: Any, entries: list[tuple[Any, Any]]) -> None:
        self._parts = (whole, entries)

    def __reduce__(self) -> tuple[Any, ...]:
        return with_entries, self._parts


def with_entries(whole: Any, entries: list[tuple[Any, Any]]) -> Any:
    """Register the entries with `copyreg` here, except for classes that it knows."""
    for kind, function in entries:
        copyreg.dispatch_table.setdefault(kind, function)
    return whole
