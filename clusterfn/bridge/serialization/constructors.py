"""Objects whose class has a constructor of its own, other than the class that says how they are pickled.

A pickle of `class Name(str)` calls `Name(text)`, whatever its constructor takes. Each is made by the constructor of
that other class instead, as its own constructor did. What a container holds is put in past its class too.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import dataclasses
import enum
import types
from typing import Any

from . import by_identity, classes, stand_ins
from .exception_parts import attempt, built_in

_NEW: Any = copyreg.__newobj__  # type: ignore[attr-defined]
_WAYS = ("__reduce_ex__", "__reduce__", "__getnewargs_ex__", "__getnewargs__")


def reduce(obj: Any) -> Any:
    """Return the reduction of such an object; NotImplemented for any other."""
    kind: Any = type(obj)
    if not kind.__flags__ & classes.HEAP or issubclass(kind, (BaseException, enum.Enum)):
        return NotImplemented
    if by_identity.registered(kind):
        return NotImplemented
    plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    by_python = type(kind.__new__) is types.FunctionType
    fills_itself = _fills_itself(kind)
    more = fills_itself and classes.is_of_script(kind)
    if plain and not by_python:
        return _with_items(obj, obj.__reduce_ex__(5)) if more else NotImplemented
    if not by_python and type(kind.__init__) is not types.FunctionType and not more:
        return NotImplemented
    teller = next((each for each in kind.__mro__[:-1] if any(way in vars(each) for way in _WAYS)), None)
    if teller is None:
        wants = by_python and _wants_arguments(kind.__new__)
        reduction = _without_arguments(obj) if wants else obj.__reduce_ex__(5) if more else NotImplemented
        return _with_items(obj, reduction) if more else reduction
    # A class of the script says itself how it is filled; only those of `collections` need help.
    more = more and teller.__module__ == "collections"
    owner = next(each for each in kind.__mro__ if "__new__" in vars(each) or (not plain and "__init__" in vars(each)))
    own = classes.is_of_script(owner)
    if not more and (issubclass(teller, owner) or not (own or _package(owner) != _package(teller))):
        return _asked_for(obj) if own and by_python else NotImplemented
    make, args, *rest = (*obj.__reduce_ex__(5), None, None, None)[:5]
    if make is _NEW and args[0] is kind:
        return made_by, (kind, _place(teller, kind), args[1:]), *rest
    # The constructor of a package's class is left out as well, so its `__setitem__` may lack what that would make.
    if make is kind and fills_itself and teller.__module__ == "collections":
        state = rest[0] if isinstance(rest[0], dict) else _own_state(obj)
        return _with_items(obj, (called, (kind, _place(teller, kind), args), state))
    return _called(obj, teller, args, rest) if make is kind else (make, args, *rest)


def _place(base: type, cls: Any) -> int:
    """Return where a base stands: the statement of a class may make another one there."""
    mro = cls.__mro__
    return next(place for place, each in enumerate(mro) if each is base) - len(mro)


def _package(cls: type) -> str:
    return str(cls.__module__).partition(".")[0]


def _called(obj: Any, teller: type, args: tuple[Any, ...], rest: list[Any]) -> tuple[Any, ...]:
    state, items, pairs = rest
    call = (type(obj), _place(teller, type(obj)), args)
    own = {} if isinstance(state, dict) else _own_state(obj)
    # A class that describes its state with a dict has described all of it. Any other leaves out the attributes of its
    # subclasses.
    if not own:
        return called, call, state, items, pairs
    return called, call, (state, own), items, pairs, fill


def _own_state(obj: Any) -> dict[str, Any]:
    slots = copyreg._slotnames(type(obj))  # type: ignore[attr-defined]
    held = {name: getattr(obj, name) for name in slots if hasattr(obj, name)}
    return {**getattr(obj, "__dict__", {}), **held}


def _asked_for(obj: Any) -> Any:
    """Reduce an object that its class's own constructor returns, as one kept in a register of the class may be."""
    reduction = obj.__reduce_ex__(5)
    plain = isinstance(reduction, tuple) and reduction[0] is _NEW and built_in(type(obj), "__new__") is object.__new__
    return (asked_for, *reduction[1:]) if plain else reduction


def _wants_arguments(function: Any) -> bool:
    code, keywords = function.__code__, function.__kwdefaults__ or {}
    named = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    return code.co_argcount - len(function.__defaults__ or ()) > 1 or any(name not in keywords for name in named)


def _without_arguments(obj: Any) -> Any:
    make, args, *rest = (*obj.__reduce_ex__(5), None, None, None)[:5]
    if make is not _NEW or len(args) != 1:
        return make, args, *rest
    base = next(each for each in type(obj).__mro__ if type(each.__new__) is not types.FunctionType)
    return made_by, (type(obj), _place(base, type(obj)), ()), *rest


def _fills_itself(kind: Any) -> bool:
    """Return whether a container does more when an item is put into it: it may need attributes that come later."""
    names = ("__setitem__",) if issubclass(kind, dict) else ("append", "extend")
    if not issubclass(kind, (dict, list, collections.deque)) or hasattr(kind, "__setstate__"):
        return False
    return any(type(getattr(kind, name)) is types.FunctionType for name in names)


def _with_items(obj: Any, reduction: tuple[Any, ...]) -> tuple[Any, ...]:
    """Add what a container holds, past what its class says: its `items` may show other values than it keeps."""
    make, args, state = (*reduction, None)[:3]
    kind = type(obj)
    if issubclass(kind, dict):
        items, pairs = [], list(built_in(kind, "items")(obj))
    else:
        items, pairs = list(built_in(kind, "__iter__")(obj)), []
    return make, args, (state, items, pairs), None, None, fill_container


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
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return NotImplemented
    if by_identity.registered(kind) or not kind.__flags__ & classes.HEAP:
        return NotImplemented
    reduction = _reduction_of(obj) if has_getattr else obj.__reduce_ex__(5)
    if not isinstance(reduction, tuple) or len(reduction) < 3:
        return NotImplemented
    # The object has no state to set.
    if reduction[2] is None:
        return reduction if has_getattr else NotImplemented
    make, *rest = reduction
    # A proxy answers for `__class__` itself, so pickle would take it for an object of the other class.
    if any("__class__" in vars(each) for each in kind.__mro__[:-1]):
        make = stand_ins.new
    return (make, *rest, None, None)[:5] + (stand_ins.set_state,)


def _reduction_of(obj: Any) -> Any:
    """Return what `object.__reduce_ex__` does, without asking the object itself for `__getstate__`."""
    kind: Any = type(obj)
    # Before Python 3.11 `object` has no `__getstate__`.
    usual = getattr(object, "__getstate__", None)
    if getattr(kind, "__getstate__", None) is not usual or any(hasattr(kind, way) for way in _WAYS[2:]):
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


def asked_for(cls: Any, *args: Any) -> Any:
    """Ask a class for its object; while the class is empty, this is one that it holds itself."""
    return object.__new__(cls) if classes.is_unfilled(cls) else cls.__new__(cls, *args)


def called(cls: Any, place: int, args: tuple[Any, ...]) -> Any:
    """Make an object of a class as a call of the base at this place does, or else as pickle itself, by its own call."""
    base = cls.__mro__[place]

    def make() -> Any:
        obj = made_by(cls, place, args)
        if base.__init__ is not object.__init__:
            base.__init__(obj, *args)
        return obj

    # A subclass may need what its own constructor sets, so the call of the base alone can fail.
    instance, broken = attempt(make)
    return cls(*args) if broken else instance


def fill(obj: Any, states: tuple[Any, dict[str, Any]]) -> None:
    """Give an object the state that its class knows, and its other attributes."""
    state, own = states
    if hasattr(type(obj), "__setstate__") and state is not None:
        obj.__setstate__(state)
    for name, value in own.items():
        object.__setattr__(obj, name, value)


def fill_container(obj: Any, content: tuple[Any, list[Any], list[Any]]) -> None:
    """Give a list, deque or dict its attributes, and then what it holds."""
    state, items, pairs = content
    stand_ins.set_state(obj, state)
    if items:
        built_in(type(obj), "extend")(obj, items)
    for key, value in pairs:
        built_in(type(obj), "__setitem__")(obj, key, value)
