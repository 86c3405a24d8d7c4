"""Which functions are sent by their names. Jobs have this too, for the decorated functions in what they return."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloudpickle import cloudpickle as _core
else:
    from .cloudpickle import cloudpickle as _core

from . import stand_ins


def reduce_decorated(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Reduce a decorated function for pickling: by its name if its module travels, else as the plain function."""
    if found_by_name(function) is not None:
        return stand_ins.by_name, (function.__module__, function.__qualname__)
    return stand_ins.Inside, (), {"function": function}


def found_by_name(function: Any) -> Any:
    """Return the function, or what wraps it, that the function's module has under its name; else None."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "<none>")
    if module in (None, "__main__") or "<" in qualname or goes_by_value(module):
        return None
    value: Any = sys.modules.get(module)
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value if value is function or getattr(value, "__wrapped__", None) is function else None


def goes_by_value(module: str) -> bool:
    """Whether the user has registered a module, or a package around it, to be sent by value."""
    registered = _core._PICKLE_BY_VALUE_MODULES
    parts = module.split(".")
    return any(".".join(parts[:length]) in registered for length in range(1, len(parts) + 1))
