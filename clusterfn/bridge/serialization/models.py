"""Functions of the script that pydantic's `validate_call` wraps: as the call that wraps them.

Models need nothing of their own: those of class statements travel as these (see `crossing`), others in their parts.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from . import hints, stand_ins

pydantic: Any = stand_ins.Library("pydantic")


def reduce_function(function: types.FunctionType, hints_of: Callable[[Any], Mapping[str, Any]]) -> Any:
    """Reduce a function of the script that `validate_call` wraps; else NotImplemented.

    Args:
        function: Any function.
        hints_of: Returns what the names in the annotations of a function mean.
    """
    plain = vars(function)["raw_function"]
    # What wraps it keeps its bound `__call__` there.
    cells = (getattr(cell.cell_contents, "__self__", None) for cell in function.__closure__ or ())
    held = next((each for each in cells if hasattr(each, "config_wrapper")), None)
    if held is None or "pydantic" not in function.__code__.co_filename:
        return NotImplemented
    return validated, (plain, dict(held.config_wrapper.config_dict), bool(held.validate_return), hints_of(plain))


def validated(function: Any, config: Any, returns: bool, names: Mapping[str, Any]) -> Any:
    """Wrap a function as `validate_call` does, which looks up the names in its annotations."""
    for name, value in stand_ins.present(names).items():
        function.__globals__.setdefault(name, value)
    with hints.found_in_module(function.__globals__):
        return pydantic.validate_call(config=config, validate_return=returns)(function)
