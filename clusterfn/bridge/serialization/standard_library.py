"""Objects of the standard library that a script makes at its top level and that neither pickle nor cloudpickle carries.

They keep locks, weak references, byte code or their own module's name beside what makes them. Each is reduced to the
latter, and made again by the same call.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import inspect
import pickle
import sys
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from . import stand_ins

_UNSET = object()


def reduce(obj: Any, has_a_home: Callable[[Any], bool]) -> Any:
    """Return the reduction of such an object; NotImplemented for any other.

    Args:
        obj: Any object.
        has_a_home: Whether the other side can import it by its name.
    """
    kind = type(obj)
    if kind is types.FunctionType:
        own = obj.__code__ is _DISPATCH and not has_a_home(obj)
        return _reduce_dispatch(obj) if own else NotImplemented
    if kind is contextvars.ContextVar:
        return _reduce_context_variable(obj)
    if is_of_argparse(kind):
        reduction = obj.__reduce_ex__(5)
        return (*reduction[:2], with_suppress(reduction[2]), None, None, fill_argparse)
    if kind.__name__ == "_GeneratorContextManager" and kind.__module__ == "contextlib":
        # A generator that has begun belongs to its process. As a decorator, a context manager never begins its own
        # generator.
        begun = inspect.getgeneratorstate(obj.gen) != inspect.GEN_CREATED
        return NotImplemented if begun else (kind, (obj.func, obj.args, obj.kwds))
    if kind.__name__ == "ForwardRef" and kind.__module__ in ("typing", "annotationlib"):
        facts = (obj.__forward_arg__, obj.__forward_module__, getattr(obj, "__forward_is_class__", False))
        return forward_reference, facts
    if kind is _ALIAS and not has_a_home(obj):
        return _reduce_alias(obj)
    if kind.__module__ in ("weakref", "_weakrefset", "builtins"):
        return _reduce_weak(obj)
    if kind.__name__ == "Struct" and kind.__module__ == "_struct":
        return struct, (obj.format,)
    return NotImplemented


def is_of_argparse(kind: type) -> bool:
    argparse: Any = sys.modules.get("argparse")
    return hasattr(argparse, "ArgumentParser") and issubclass(kind, (argparse.Action, argparse._ActionsContainer))


def with_suppress(state: Any) -> Any:
    """Send `argparse.SUPPRESS` by its name: it is a text that argparse compares by identity."""
    suppress = sys.modules["argparse"].SUPPRESS
    if type(state) is not dict or not any(value is suppress for value in state.values()):
        return state
    named = stand_ins.MadeThere(stand_ins.found_or_missing, "argparse", "SUPPRESS")
    return {name: named if value is suppress else value for name, value in state.items()}


def fill_argparse(obj: Any, state: dict[str, Any]) -> None:
    """Give a part of a parser its state, and what only the constructors of this version know, as they do by default."""
    vars(obj).update(state)
    for kind in [base for base in type(obj).__mro__ if base.__module__ == "argparse"]:
        init: Any = kind.__init__  # type: ignore[misc]
        stored = init.__code__.co_names if isinstance(init, types.FunctionType) else ()
        for name, parameter in inspect.signature(kind).parameters.items():
            if parameter.default is not parameter.empty and name in stored and not hasattr(obj, name):
                setattr(obj, name, parameter.default)
        if kind.__name__ == "_SubParsersAction":
            # From Python 3.13 on.
            vars(obj).setdefault("_deprecated", set())


def struct(form: Any) -> Any:
    """Make a compiled format."""
    return importlib.import_module("struct").Struct(form)


def _reduce_weak(obj: Any) -> Any:
    """Reduce weak references and what holds them: what nothing else of the pickle holds is gone after loading."""
    kind = type(obj)
    if kind is weakref.WeakMethod or kind is weakref.ref:
        return weak_reference, ("ref" if kind is weakref.ref else "WeakMethod", obj())
    if kind is weakref.WeakSet:
        return kind, (list(obj),)
    if kind is weakref.WeakValueDictionary or kind is weakref.WeakKeyDictionary:
        return kind, (), None, None, iter(list(obj.items()))
    return NotImplemented


def weak_reference(name: str, held: Any) -> Any:
    """Make a weak reference; one to nothing if what it held was gone."""
    if held is None:
        return weakref.ref(type("Gone", (), {})())
    return getattr(weakref, name)(held)


_dispatch: Any = functools.singledispatch(lambda _: None)
_DISPATCH = _dispatch.__code__
# `typing.TypeAliasType` exists from Python 3.12 on.
_ALIAS: Any = getattr(typing, "TypeAliasType", None)


def forward_reference(text: str, module: Any, is_class: bool) -> Any:
    """Make the reference to a type that typing makes of "Name"; it compiles the text itself."""
    return typing.ForwardRef(text, module=module, is_class=is_class)


def _reduce_dispatch(function: Any) -> tuple[Any, ...]:
    named = {name: getattr(function, name) for name in functools.WRAPPER_ASSIGNMENTS if hasattr(function, name)}
    named.pop("__annotations__", None)
    own = {name: value for name, value in vars(function).items() if name not in _OF_DISPATCH}
    return dispatch, (function.__name__,), (named, own, dict(function.registry)), None, None, fill_dispatch


_OF_DISPATCH = ("register", "dispatch", "registry", "_clear_cache")


def dispatch(name: str) -> Any:
    """Make a single-dispatch function without implementations, which may refer to it."""

    def nothing(_: object) -> None: ...

    nothing.__name__ = name
    return functools.singledispatch(nothing)


def fill_dispatch(
    function: Any, state: tuple[Mapping[str, Any], Mapping[str, Any], Mapping[Any, Callable[..., Any]]]
) -> None:
    """Give a single-dispatch function its names, attributes and implementations."""
    named, own, registry = state
    for cls, implementation in registry.items():
        function.register(cls, implementation)
    for name, value in named.items():
        setattr(function, name, value)
    vars(function).update(own)


def _reduce_context_variable(variable: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    home = home_of(variable)
    if home is not None:
        return stand_ins.by_name, home
    try:
        default: tuple[Any, ...] = (contextvars.Context().run(variable.get),)
    except LookupError:
        default = ()
    value = variable.get(_UNSET)
    unchanged = value is _UNSET or (default and value is default[0])
    state = None if unchanged else (value,)
    return context_variable, (variable.name, *default), state, None, None, set_context_variable


def home_of(variable: contextvars.ContextVar[Any]) -> tuple[str, str] | None:
    """Return the module that has a context variable, and its name there; None for one of the script."""
    main = sys.modules.get("__main__")
    for name, module in list(sys.modules.items()):
        # multiprocessing keeps the script's module under a second name.
        if module is not main:
            held = list(getattr(module, "__dict__", {}).items())
            found = next((key for key, value in held if value is variable), None)
            if found is not None:
                return name, found
    return None


def context_variable(name: str, *default: Any) -> Any:
    """Make a context variable."""
    return contextvars.ContextVar(name, default=default[0]) if default else contextvars.ContextVar(name)


def set_context_variable(variable: contextvars.ContextVar[Any], state: tuple[Any, ...]) -> None:
    """Set it as it was where it was pickled."""
    variable.set(*state)


def _reduce_alias(alias: Any) -> tuple[Any, ...]:
    # Only its own module has an alias, and an older Python has none: so the type itself goes in its place.
    if _contains(alias.__value__, alias):
        raise pickle.PicklingError("the type %s refers to itself: write it in a module of your own" % alias.__name__)
    return same, (alias.__value__,)


def _contains(kind: Any, alias: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Return whether a type is made of this alias."""
    parts = [*(getattr(kind, "__args__", None) or ()), *([kind.__value__] if type(kind) is _ALIAS else [])]
    return kind is alias or any(_contains(part, alias, (*seen, kind)) for part in parts if part not in seen)


def same(value: Any) -> Any:
    """Return what an alias stands for."""
    return value
