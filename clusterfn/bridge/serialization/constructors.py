"""Objects that a pickle cannot make by their class: its constructor takes something else, or it answers for attributes.

A pickle of `class Name(str)` calls `Name(text)`, whatever its constructor takes. Such an object is made by the
constructor of its base instead, as its own constructor did.
"""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import enum
import types
from typing import Any

from . import classes, stand_ins

_NEW: Any = copyreg.__newobj__  # type: ignore[attr-defined]
_STATE_METHODS = ("__getnewargs_ex__", "__getnewargs__")


def reduce(obj: Any) -> Any:
    """Reduce an object whose class has a `__new__` of its own to the call of its base's; else NotImplemented."""
    kind: Any = type(obj)
    if type(kind.__new__) is not types.FunctionType or kind in copyreg.dispatch_table or not _is_plain(kind):
        return NotImplemented
    owner = next(base for base in kind.__mro__ if "__new__" in vars(base))
    teller = next((base for base in kind.__mro__ if any(way in vars(base) for way in _STATE_METHODS)), None)
    if classes.is_installed(owner.__module__) or issubclass(kind, (BaseException, enum.Enum)):
        return NotImplemented
    if _wants_arguments(kind.__new__) if teller is None else not issubclass(teller, owner):
        base = teller or next(parent for parent in kind.__mro__ if type(parent.__new__) is not types.FunctionType)
        _, args, *rest = obj.__reduce_ex__(5)
        # Its place is named: the statement of a class may make another base there.
        return made_by, (kind, kind.__mro__.index(base) - len(kind.__mro__), args[1:]), *rest
    return NotImplemented


def _is_plain(kind: Any) -> bool:
    return kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__


def _wants_arguments(function: Any) -> bool:
    code = function.__code__
    keywords = function.__kwdefaults__ or {}
    named = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    return code.co_argcount - len(function.__defaults__ or ()) > 1 or any(name not in keywords for name in named)


def reduce_guarded(obj: Any) -> Any:
    """Reduce an object whose class answers for attributes itself, so that its state is set past these answers.

    While an object is empty, a `__getattr__` that reads another attribute never ends, and pickle asks it for
    `__setstate__`; a frozen class with slots refuses its state.
    """
    kind: Any = type(obj)
    # This `__getstate__` is the one that `dataclasses` gives a frozen class with slots.
    if getattr(getattr(kind, "__getstate__", None), "__module__", "") == "dataclasses":
        # Without those of the class alone, `ClassVar` and `InitVar`, which an object cannot set.
        names = [field.name for field in dataclasses.fields(kind)]
        state = {name: getattr(obj, name) for name in names if hasattr(obj, name)}
        return _NEW, (kind,), (None, state), None, None, stand_ins.set_state
    has_getattr = hasattr(kind, "__getattr__")
    if not (has_getattr or isinstance(kind.__setattr__, types.FunctionType)) or hasattr(kind, "__setstate__"):
        return NotImplemented
    if not _is_plain(kind) or kind in copyreg.dispatch_table or not kind.__flags__ & classes.HEAP:
        return NotImplemented
    reduction = _reduction_of(obj) if has_getattr else obj.__reduce_ex__(5)
    if not isinstance(reduction, tuple) or len(reduction) < 3:
        return NotImplemented
    # The object has no state to set.
    if reduction[2] is None:
        return reduction if has_getattr else NotImplemented
    make, *rest = reduction
    # A proxy answers for `__class__` itself, so pickle would take it for an object of the other class.
    if any("__class__" in vars(base) for base in kind.__mro__[:-1]):
        make = stand_ins.new
    return (make, *rest, None, None)[:5] + (stand_ins.set_state,)


def _reduction_of(obj: Any) -> Any:
    """Return what `object.__reduce_ex__` does, without asking the object itself for `__getstate__`."""
    kind: Any = type(obj)
    # Before Python 3.11 `object` has no `__getstate__`.
    usual = getattr(object, "__getstate__", None)
    if getattr(kind, "__getstate__", None) is not usual or any(hasattr(kind, way) for way in _STATE_METHODS):
        return obj.__reduce_ex__(5)
    slots = {}
    for name in copyreg._slotnames(kind):  # type: ignore[attr-defined]
        with contextlib.suppress(AttributeError):
            slots[name] = object.__getattribute__(obj, name)
    state: Any = getattr(obj, "__dict__", None) if has_state(obj) else None
    items = iter(list(obj)) if issubclass(kind, list) else None
    pairs = iter(list(dict.items(obj))) if issubclass(kind, dict) else None
    return _NEW, (kind,), (state, slots) if slots else state, items, pairs


def has_state(obj: Any) -> bool:
    try:
        # `object.__getattribute__` does not call the user's `__getattr__`, which may raise anything or never end.
        return bool(object.__getattribute__(obj, "__dict__"))
    except AttributeError:
        return False


def made_by(cls: Any, place: int, args: tuple[Any, ...]) -> Any:
    """Make an object of a class as the base at this place does."""
    return cls.__mro__[place].__new__(cls, *args)
