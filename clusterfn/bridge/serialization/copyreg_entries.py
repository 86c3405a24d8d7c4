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
    of_script = {}
    for kind, function in list(copyreg.dispatch_table.items()):
        if isinstance(function, types.FunctionType):
            module = sys.modules.get(function.__module__)
            if module is None or function.__module__ == "__main__" or classes.goes_by_value(module):
                of_script[id(kind)] = kind, function
    return of_script


def with_entries(whole: Any, entries: list[tuple[Any, Any]]) -> Any:
    """Register the entries of a call with `copyreg` here, except for classes that it knows."""
    for kind, function in entries:
        copyreg.dispatch_table.setdefault(kind, function)
    return whole
