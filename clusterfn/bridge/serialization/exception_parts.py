"""The parts of an exception, of which it is made again past a constructor that is written in Python.

Knows nothing of pickles but which function a pickle calls.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Attributes of built-in exceptions that are kept elsewhere, or (AttributeError.obj) may be anything of any size.
_NOT_KEPT = frozenset(["__suppress_context__", "message", "exceptions", "obj", "object"])


class CannotRebuild(Exception):
    """The exception's type does not exist in this environment, or cannot be constructed."""


def attempt(call: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """Return what `call(*args)` returned and None, or None and what it raised; let Ctrl-C pass.

    For code of the user's that may raise anything: constructors, __reduce__, __repr__, __str__.
    """
    try:
        return call(*args), None
    except KeyboardInterrupt:
        raise
    except BaseException as reason:  # noqa: BLE001 - the user's code may raise anything
        # The caller has another way to do it, or reports the reason.
        return None, reason


def pickles_itself(cls: type) -> bool:
    """Return whether a class, in C or in Python, says how its exceptions are pickled, other than Python's own ones."""
    ways = ("__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__", "__getstate__")
    defined = (base for way in ways for base in [next((kind for kind in cls.__mro__ if way in vars(kind)), object)])
    return any(base.__module__ != "builtins" for base in defined)


def state_of(error: BaseException) -> dict[str, Any]:
    """Collect its attributes: its __dict__, its slots, and what built-in types keep apart from `args`, as filename."""
    state = {name: value for name, value in vars(error).items() if name != "__notes__"}
    for cls in type(error).__mro__:
        for name, slot in cls.__dict__.items():
            if isinstance(slot, types.MemberDescriptorType) and name not in state:
                value, missing = attempt(slot.__get__, error)
                # None in a built-in type means that the argument was left out. Set again, it would show in the message.
                if not missing and (cls.__module__ != "builtins" or (value is not None and name not in _NOT_KEPT)):
                    state[name] = value
    return state


def notes_of(error: BaseException) -> list[str]:
    # `object.__getattribute__` does not call the user's `__getattr__`.
    kept, _ = attempt(object.__getattribute__, error, "__notes__")
    notes, _ = attempt(list, kept or ())
    return [text_of(note) for note in notes or ()]


def text_of(value: object) -> str:
    """Return the text of an exception or a note; str() may raise, or return a subclass of str."""
    text, broken = attempt(str, value)
    return f"<no message: its __str__ raised {type(broken).__name__}>" if broken else str.__str__(text)


def name_of(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def make_exception(cls: type, args: Sequence[Any]) -> BaseException:
    """Make an exception with these `args` by the built-in bases of its class; raise CannotRebuild if none makes it."""
    error: object = None
    reason: BaseException | None = None
    # Of several built-in bases, only the one with the most fields can make the object.
    for make in _built_ins(cls, "__new__"):
        error, reason = attempt(make, cls, *args)
        if isinstance(error, BaseException):
            break
    if not isinstance(error, BaseException):
        raise CannotRebuild(f"{name_of(cls)} refused to be made: {reason!r}") from reason
    attempt(built_in(cls, "__init__"), error, *args)
    # A class may have a property named `args`.
    attempt(set_attribute, error, "args", tuple(args))
    return error


def give_text(error: object, text: str) -> None:
    """Let an exception whose text is that of its `args` say this; another one stays as it is."""
    if not isinstance(error, BaseException) or text_of(error) == text:
        return
    if isinstance(type(error).__str__, types.WrapperDescriptorType):
        before = error.args
        attempt(set_attribute, error, "args", (text,))
        if text_of(error) != text:
            attempt(set_attribute, error, "args", before)


def reduce(error: Any) -> Any:
    """Reduce an exception in a value to its parts, past a constructor written in Python; NotImplemented for all else.

    Such a constructor may not take the `args` that it has set, or make another text of them. One that pickles itself
    does so, and keeps its text.
    """
    # `isinstance` would trust `error.__class__`, which may be any object.
    cls = type(error)
    if not issubclass(cls, BaseException):
        return NotImplemented
    if pickles_itself(cls):
        reduction = error.__reduce_ex__(5)
        is_rebuildable = isinstance(reduction, tuple) and isinstance(cls.__str__, types.WrapperDescriptorType)
        arguments = (*reduction[:2], text_of(error), descriptions_of(error.args))
        return (remade, arguments, *reduction[2:]) if is_rebuildable else NotImplemented
    written_in_python = [isinstance(method, types.FunctionType) for method in (cls.__init__, cls.__new__)]
    if not any(written_in_python) and type(cls).__call__ is type.__call__:
        return NotImplemented
    notes = {"__notes__": notes_of(error)} if notes_of(error) else {}
    return make_exception, (cls, error.args), {**state_of(error), **notes}, None, None, fill


def remade(make: Callable[..., Any], args: tuple[Any, ...], text: str, descriptions: Sequence[str]) -> Any:
    """Make an exception in its own way, which may lose its text with some of its `args` (see `descriptions_of`)."""
    error = make(*args)
    if descriptions_of(getattr(error, "args", ())) != descriptions:
        give_text(error, text)
    return error


def descriptions_of(args: Sequence[Any]) -> list[str]:
    """Describe arguments, by which those that arrived are known: plain ones by their text, others by their types."""
    return [repr(arg)[:100] if any(type(arg) is plain for plain in _PLAIN) else name_of(type(arg)) for arg in args]


_PLAIN = (str, bytes, int, float, bool, type(None))


def fill(error: BaseException, state: dict[str, Any]) -> None:
    """Give an exception its attributes."""
    for name, value in state.items():
        attempt(set_attribute, error, name, value)


# `object.__setattr__` does not call the user's `__setattr__`: an exception may be a frozen dataclass.
set_attribute = object.__setattr__


def built_in(cls: type, method: str) -> Any:
    """Return the nearest method of that name, in a class or its bases, that is not written in Python."""
    return next(_built_ins(cls, method))


def _built_ins(cls: type, method: str) -> Iterator[Any]:
    methods = (base.__dict__[method] for base in cls.__mro__ if method in base.__dict__)
    bare = (getattr(method, "__func__", method) for method in methods)
    return (method for method in bare if not isinstance(method, types.FunctionType))
