"""Enumerations of the script, made again with all their names, by their own metaclass.

cloudpickle leaves out aliases and values of several flags, makes methods of functions that are members, and reduces a
member to its value, which may be another object where it is loaded.
"""

from __future__ import annotations

import enum
from typing import Any

from . import classes
from .classes import core

# The members have this place among the arguments of cloudpickle's `_make_skeleton_enum`.
_MEMBERS = 3


def reduce_member(obj: Any) -> Any:
    """Reduce a member to its class and name; NotImplemented for any other object."""
    kind: Any = type(obj)
    if not issubclass(kind, enum.Enum) or getattr(kind.__reduce_ex__, "__module__", "") != "enum":
        return NotImplemented
    name = obj._name_
    named = type(name) is str and kind._member_map_.get(name) is obj and classes.is_of_script(kind)
    value = obj._value_ if isinstance(obj._value_, (int, str)) else None
    return (member, (kind, name, value)) if named else NotImplemented


def reduce_class(cls: Any, args: tuple[Any, ...], state: tuple[dict[str, Any], Any]) -> tuple[Any, Any, Any]:
    """Complete what cloudpickle takes of an enumeration: the function that makes it, its arguments and its state."""
    members = {name: each.value for name, each in cls.__members__.items()}
    # `enum.member` exists from Python 3.11 on. It makes a member of a function, which would become a method.
    make: Any = getattr(enum, "member", lambda value: value)
    wrapped = {name: make(value) if hasattr(type(value), "__get__") else value for name, value in members.items()}
    own = {name: value for name, value in state[0].items() if name not in members}
    for name, each in cls.__members__.items():
        # What the enumeration's own __init__ set: that method does not exist when the members are rebuilt.
        kept = {key: value for key, value in getattr(each, "__dict__", {}).items() if not key.startswith("_")}
        if kept:
            state[1][name] = kept
    bases, *named = args[:_MEMBERS]
    return skeleton, (type(cls), bases, *named, wrapped, *args[_MEMBERS + 1 :]), (own, state[1])


def member(cls: Any, name: str, value: Any) -> Any:
    """Return the member of an enumeration that has this name; its statement may give it others there."""
    return cls._member_map_[name] if name in cls._member_map_ else cls(value)


def skeleton(
    metaclass: Any, bases: tuple[type, ...], name: str, qualname: str, members: dict[str, Any], module: str,
    tracker: str, extra: None,
) -> Any:  # fmt: skip
    """Make an enumeration with its members alone."""
    scope = metaclass.__prepare__(name, bases)
    for key, value in members.items():
        scope[key] = value
    cls = enum.EnumMeta.__new__(metaclass, name, bases, scope)
    cls.__module__, cls.__qualname__ = module, qualname
    return core._lookup_class_or_track(tracker, cls)
