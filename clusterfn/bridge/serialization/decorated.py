"""Functions that an object of a library decorates: as that object and the function, to be decorated there.

The function that the object's call returns has code of the library, of which another version knows nothing.
"""

from __future__ import annotations

import types
from typing import Any

from . import classes


def reduce(function: types.FunctionType) -> Any:
    """Reduce a function that such an object's call made of another one; NotImplemented for any other."""
    plain = vars(function).get("__wrapped__")
    if plain is None or not function.__closure__:
        return NotImplemented
    held = [value for cell in function.__closure__ for value in classes.content(cell)]
    for decorator in held:
        call = next((vars(each)["__call__"] for each in type(decorator).__mro__ if "__call__" in vars(each)), None)
        if not isinstance(call, types.FunctionType) or function.__code__ not in call.__code__.co_consts:
            continue
        if len(held) == 2 and any(each is plain for each in held) and not classes.is_of_script(type(decorator)):
            return NotImplemented if classes.has_a_home(function) else (decorated, (decorator, plain))
    return NotImplemented


def decorated(decorator: Any, function: Any) -> Any:
    """Decorate a function."""
    return decorator(function)
