"""Finds what inside a value cannot be pickled, and says it as a path: `result['model'].lock`.

Called only after pickling has failed, by the worker and by `payload`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import pickler
from .foreign import attempt

_MAX_LOOKS = 2000


def where(value: object, name: str) -> str:
    """The innermost part of `value` that cannot be pickled, as an expression, and why.

    Example:
        >>> where({"model": open("/dev/null")}, "result")
        "result['model']: cannot pickle '_io.TextIOWrapper' object"
    """
    path, reason, looks = name, _failure(value), _MAX_LOOKS
    seen = {id(value)}
    while looks:
        for step, part in _parts(value):
            looks -= 1
            if id(part) not in seen and (failed := _failure(part)) is not None:
                seen.add(id(part))
                path, reason, value = path + step, failed, part
                break
            if not looks:
                break
        else:
            break
    return f"{path}: {reason or 'cannot be pickled'}"


def _failure(value: object) -> str | None:
    _, reason = attempt(pickler.dumps, value)
    return None if reason is None else str(reason) or type(reason).__name__


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in list(value.items()))
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((".pop()", part) for part in value)
    elif callable(value) and hasattr(value, "__code__"):
        yield from _function_parts(value)
    else:
        yield from ((f".{name}", part) for name, part in list(getattr(value, "__dict__", {}).items()))
        yield from ((f".{name}", getattr(value, name)) for name in _slots(value) if hasattr(value, name))


def _slots(value: object) -> list[str]:
    names: list[str] = []
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _function_parts(function: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f" (closure variable {name})", cell.cell_contents
        except ValueError:  # a cell that is still empty has no part that could fail
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f" (global {name})", function.__globals__[name]
    for index, default in enumerate(function.__defaults__ or ()):
        yield f" (default {index})", default
