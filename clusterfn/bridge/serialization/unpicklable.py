"""Find the part of a value that cannot be pickled, and name it by a path: `result['model'].lock`.

Needed only after pickling has failed.
"""

from __future__ import annotations

import functools
import io
import pickle
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import code_parts, crossing, pickler
from .exception_parts import attempt

LIMIT_S = 1.5
# The first text is Python's, the second cloudpickle's.
_TOO_DEEP = ("maximum recursion depth exceeded", "Could not pickle object as excessively deep")
_SHOWN = 60


def where(value: object, name: str, target: pickler.Version = None) -> str:
    """Describe the innermost part of `value` that cannot be pickled, as an expression, and why.

    Args:
        value: What could not be pickled.
        name: What to call it.
        target: (major, minor) of the Python that should have read it; None is this one's.

    Example:
        >>> where({"model": open("/dev/null")}, "result")
        "result['model']: cannot pickle '_io.TextIOWrapper' object"
    """
    return find(value, name, target)[0]


def find(
    value: object, name: str, target: pickler.Version = None, on_object: Callable[[object], Any] | None = None
) -> tuple[str, object]:
    """Return what `where` returns, and the part itself; `on_object` as for `container.pack`."""
    failure = functools.partial(pickling_failure, target, on_object=on_object)
    steps = [name]
    reason = failure(value)
    deadline = time.monotonic() + LIMIT_S
    if reason is not None and reason.startswith(_TOO_DEEP):
        return f"{name}: it is nested too deep to pickle", value
    # The list holds the values, so that no new object gets the id of an earlier one.
    passed = [value]
    while time.monotonic() < deadline:
        seen = {id(ancestor) for ancestor in passed}
        parts = [(step, part) for step, part in _readable_parts(value) if id(part) not in seen]
        failing = _first_failing([part for _, part in parts], failure, deadline)
        if failing is None:
            break
        step, value = parts[failing]
        steps.append(step)
        reason = failure(value)
        passed.append(value)
    # Of more than three steps, only the first and the last two are shown.
    shown = steps if len(steps) <= 4 else [*steps[:2], " … ", *steps[-2:]]
    return f"{''.join(shown)}: {reason or 'cannot be pickled'}", value


def instead_of(part: object) -> str:
    """Say what a function should return instead of a part that cannot be pickled."""
    hint, _ = attempt(_instead_of, part)
    return hint or _PLAIN


def _instead_of(part: object) -> str:
    if isinstance(part, (types.CoroutineType, types.AsyncGeneratorType)) or hasattr(type(part), "__await__"):
        return "await it inside the function, and return what it gives"
    if hasattr(type(part), "__next__") and not isinstance(part, io.IOBase):
        return "return a list instead: the values of a generator or iterator exist only in its process"
    kinds = [f"{cls.__module__}.{cls.__qualname__}" for cls in type(part).__mro__]
    return next((hint for names, hint in _INSTEAD if any(kind.startswith(names) for kind in kinds)), _PLAIN)


_PLAIN = "return plain data, arrays or tensors instead of the part named"
# For the beginning of a module's name and the name of a type, what to do instead. The first entry that fits counts.
_INSTEAD: Sequence[tuple[tuple[str, ...], str]] = (
    (("socket.", "_socket.", "ssl.", "_ssl.", "select."), "a connection ends with its process: return what it read"),
    (("_io.", "io.", "tempfile.", "mmap."), "return what the file holds, or its name: outputs=[...] brings the file"),
    (
        ("_thread.", "threading.", "_queue.", "queue.", "multiprocessing.", "concurrent.", "_asyncio.", "asyncio."),
        "a lock, thread or process exists only where it was made: return the data beside it",
    ),
    (("builtins.module",), "return what you need of the module: the module itself can be imported here"),
    (("_tkinter.", "tkinter."), "a window exists only in its process: return what it shows"),
    (("sqlite3.", "psycopg", "pymysql."), "a connection ends with its process: return the rows"),
    (("builtins.traceback", "builtins.frame"), "return traceback.format_exc(), which is text"),
    (("builtins.memoryview",), "return bytes(...) of it"),
)


def _first_failing(parts: Sequence[object], failure: Callable[[object], str | None], deadline: float) -> int | None:
    """Return the place of the first part that fails, by halving: a million parts are pickled about twice."""
    low, high = 0, len(parts)
    if failure(list(parts)) is None:
        return None
    while high - low > 1:
        if time.monotonic() > deadline:
            return None
        middle = (low + high) // 2
        if failure(parts[low:middle]) is None:
            low = middle
        else:
            high = middle
    return low if parts else None


class _Nowhere:
    """A file that keeps nothing: a value may be larger than what memory is left."""

    @staticmethod
    def write(data: Any) -> int:
        return len(data)


def pickling_failure(
    target: pickler.Version, value: object, on_object: Callable[[object], Any] | None = None
) -> str | None:
    file: Any = _Nowhere()
    _, reason = attempt(crossing.pickler_for(target)(file, lambda buffer: None, on_object).dump, value)
    if reason is not None and is_future(value):
        return "a Future is not the value that it will have"
    return None if reason is None else _why(reason)


def _why(reason: BaseException) -> str:
    """Say why pickling failed, and by which error if an object's own code has raised one."""
    text = _said(str, reason)
    name = type(reason).__name__
    if "pickle" in text or isinstance(reason, pickle.PicklingError):
        return text
    return f"pickling it raised {name}: {text}" if text else f"pickling it raised {name}"


def _readable_parts(value: object) -> list[tuple[str, Any]]:
    """List the parts of a value, or those before the one at which its own code raised."""
    parts: list[tuple[str, Any]] = []
    attempt(lambda: parts.extend(_parts(value)))
    return parts


def is_future(value: object) -> bool:
    """Whether it is a Future, of concurrent.futures, asyncio or a library: its parts are locks that say nothing."""
    # The getter of `type` itself is used, because a class may hide its bases. A Job has `_as_argument`, which says what
    # to pass instead.
    kinds = type.__dict__["__mro__"].__get__(type(value))
    names = [type.__dict__["__name__"].__get__(kind) for kind in kinds]
    return "Future" in names and not hasattr(type(value), "_as_argument")


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if is_future(value):
        return
    if isinstance(value, (list, tuple)):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((" (an element)", part) for part in value)
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, functools.partial):
        yield from ((f".{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, type):
        yield from ((f".{name}", part) for name, part in list(vars(value).items()))
    elif type(value) is dict:
        yield from _items(value.items())
    else:
        yield from _reduced_parts(value)


def _items(pairs: Any) -> Iterator[tuple[str, Any]]:
    for key, part in list(pairs):
        shown = _said(repr, key)
        yield f"[{shown}]", part
        yield f" (key {shown})", key


def _reduced_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what pickle would keep of an object: the state that it gives of itself, not all that it refers to."""
    reduced, _ = attempt(value.__reduce_ex__, 5)
    if not isinstance(reduced, tuple):
        return
    args, state, items, pairs = (*reduced, None, None, None, None)[1:5]
    for held in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if isinstance(held, dict):
            yield from ((f".{name}", part) for name, part in list(held.items()))
        else:
            yield " (its state)", held
    yield from ((f"[{index}]", part) for index, part in enumerate(items or ()))
    yield from _items(pairs or ())
    yield from ((f" (argument {index} of its reduction)", part) for index, part in enumerate(args or ()))


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        content, empty = attempt(getattr, cell, "cell_contents")
        if not empty:
            yield f" (closure variable {name})", content
    for name in dict.fromkeys(name for code in code_parts.codes(function.__code__) for name in code.co_names):
        if name in function.__globals__:
            yield f" (global {name})", function.__globals__[name]
    for index, default in enumerate(function.__defaults__ or ()):
        yield f" (default {index})", default
    for name, default in (function.__kwdefaults__ or {}).items():
        yield f" (default {name})", default
    yield from ((f".{name}", part) for name, part in vars(function).items())


def _said(how: Callable[[object], str], value: object) -> str:
    """Return `how(value)`, str or repr, cut; the name of its type if that raises."""
    text, broken = attempt(how, value)
    if broken:
        return f"<{type(value).__name__}>"
    return str(text) if how is str or len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
