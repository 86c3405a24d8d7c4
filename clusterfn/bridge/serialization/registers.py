"""Registers: dicts, lists and sets in which the classes of a script stand, often put there by their own statements.

Such a class would be needed for its own statement. So a register goes empty to whatever uses it, and gets its content
when all classes have been made.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

from .hints import attribute

_EMPTY: Any = {dict: dict, list: list, set: set}
_MADE: Any = copyreg.__newobj__  # type: ignore[attr-defined]


class Whole:
    """What is pickled, and after it the content of its registers."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj


class Rest:
    """The content of the registers that have been met so far."""


class Registers:
    """The registers of one pickle.

    Args:
        is_of_script: Whether a class goes as its statement.
    """

    def __init__(self, is_of_script: Callable[[type], bool]) -> None:
        self._is_of_script = is_of_script
        # Each register by its id, with the empty one that goes in its place. It is held, so that no other object gets
        # its id.
        self._known: dict[int, tuple[Any, Any]] = {}
        self._waiting: list[tuple[Any, Any]] = []

    def empty(self, value: Any) -> Any:
        """Return what goes for a value: an empty one for a register, else the value."""
        if type(value) not in _EMPTY or not any(self._holds(part) for part in parts(value)):
            return value
        if id(value) not in self._known:
            self._known[id(value)] = (value, _EMPTY[type(value)]())
            self._waiting.append(self._known[id(value)])
        return self._known[id(value)][1]

    def in_call(self, obj: Any) -> Any:
        """Return what goes for the function and arguments of a call, or for a value that may be a register itself."""
        if is_call(obj):
            function, args, kwargs = obj
            return function, tuple(map(self.empty, args)), {name: self.empty(value) for name, value in kwargs.items()}
        return self.empty(obj)

    def _holds(self, part: Any) -> bool:
        return issubclass(type(part), type) and self._is_of_script(part)

    def reduce(self, obj: Any) -> Any:
        """Reduce a pickle's parts of this module, and objects of the script that keep registers."""
        if type(obj) is Whole:
            return complete, (obj.obj, Rest())
        if type(obj) is Rest:
            waiting, self._waiting = self._waiting, []
            content = [(empty, type(register)(register)) for register, empty in waiting]
            return fill, (content, Rest()) if content else (content,)
        kind: Any = type(obj)
        if kind.__reduce_ex__ is not object.__reduce_ex__ or issubclass(kind, type) or not self._is_of_script(kind):
            return NotImplemented
        reduction = obj.__reduce_ex__(5)
        if not isinstance(reduction, tuple) or reduction[0] is not _MADE or type(reduction[2]) is not dict:
            return NotImplemented
        state = {name: self.empty(value) for name, value in reduction[2].items()}
        return (*reduction[:2], state, *reduction[3:])


def is_call(obj: Any) -> bool:
    """Return whether an object is a function with its arguments, as a job gets them."""
    return type(obj) is tuple and len(obj) == 3 and type(obj[1]) is tuple and type(obj[2]) is dict


def keeps_one(obj: Any, is_of_script: Callable[[type], bool]) -> bool:
    """Return whether an object of the script has a register among its attributes."""
    kind: Any = type(obj)
    if issubclass(kind, type) or kind.__module__ == "builtins" or not is_of_script(kind):
        return False
    held = attribute(obj, "__dict__")
    registers = [value for value in held.values() if type(value) in _EMPTY] if type(held) is dict else []
    return any(issubclass(type(part), type) and is_of_script(part) for value in registers for part in parts(value))


def parts(value: Any) -> list[Any]:
    """Return the keys and values, or elements, of a register."""
    return [*value, *value.values()] if type(value) is dict else list(value)


def complete(obj: Any, _: Any) -> Any:
    """Return what was pickled, when its registers are full."""
    return obj


def fill(content: list[tuple[Any, Any]], _: Any = None) -> None:
    """Give registers the content that they have, whatever the statements of classes put into them."""
    for register, held in content:
        register.clear()
        register.extend(held) if type(register) is list else register.update(held)
