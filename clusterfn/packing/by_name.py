"""Which functions are sent by their names; jobs have this of `packing` too, for the decorated functions in results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from clusterfn.bridge.attributes import attribute
from clusterfn.hosts import serialization


def reduce_decorated(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Reduce a decorated function for pickling: by its name if its module travels, else as the plain function."""
    reducers = serialization.part("stand_ins")
    if found_by_name(function) is not None:
        return reducers.by_name, (function.__module__, function.__qualname__)
    return reducers.Inside, (), {"function": function}


def found_by_name(function: Any) -> Any:
    """Return the function, or what wraps it, that the function's module has under its name; else None."""
    module, qualname = attribute(function, "__module__"), attribute(function, "__qualname__", "<none>")
    if module in (None, "__main__") or "<" in qualname or goes_by_value(module):
        return None
    value: Any = sys.modules.get(module)
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value if value is function or getattr(value, "__wrapped__", None) is function else None


def goes_by_value(module: str) -> bool:
    registered = serialization.part("cloudpickle").cloudpickle._PICKLE_BY_VALUE_MODULES
    if "." not in module:
        return module in registered
    parts = module.split(".")
    return any(".".join(parts[:length]) in registered for length in range(1, len(parts) + 1))
