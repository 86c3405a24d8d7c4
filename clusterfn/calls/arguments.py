"""Check a call's arguments against the function's signature, as Python itself would."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any


def check_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Reject arguments that the function would reject, if its signature is certain."""
    plain = function
    while isinstance(plain, (functools.partial, types.MethodType)):
        plain = plain.func if isinstance(plain, functools.partial) else plain.__func__
    if not isinstance(plain, types.FunctionType) or hasattr(plain, "__signature__"):
        return
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError, NameError, AttributeError):  # a partial that does not fit; an annotation that fails
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as refused:
        error = _as_python_says_it(plain, signature, args, kwargs) or TypeError(f"{plain.__name__}() {refused}")
        raise error from None


def _as_python_says_it(
    function: types.FunctionType, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> TypeError | None:
    """Return what Python raises at a call of an empty function with this signature."""
    bare = [
        each.replace(annotation=each.empty, default=each.default if each.default is each.empty else None)
        for each in signature.parameters.values()
    ]
    scope: dict[str, Any] = {}
    try:
        exec(f"def empty{inspect.Signature(bare)}: pass", scope)
    except (SyntaxError, ValueError):  # a name that only byte code can have
        return None
    empty = scope["empty"]
    empty.__name__, empty.__qualname__ = function.__name__, function.__qualname__
    empty.__code__ = empty.__code__.replace(co_name=function.__name__)  # Python 3.9 says this one
    try:
        empty(*args, **kwargs)
    except TypeError as error:
        return error.with_traceback(None)
    return None
