"""Objects of the standard library that a script makes at its top level and that neither pickle nor cloudpickle carries.

They keep locks, weak references, byte code or their own module's name beside what makes them. Each is reduced to the
latter, and made again by the same call.
"""

from __future__ import annotations

import collections
import contextvars
import copyreg
import functools
import gc
import importlib
import inspect
import pickle
import sys
import types
import typing
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import stand_ins

_UNSET = object()
_HERE = sys.version_info[:2]
_MADE: Any = copyreg.__newobj__  # type: ignore[attr-defined]


def reduce(obj: Any, target: tuple[int, int], has_a_home: Callable[[Any], bool]) -> Any:
    """Return the reduction of such an object; NotImplemented for any other.

    Args:
        obj: Any object.
        target: Version of the Python that reads it.
        has_a_home: Whether the other side can import it by its name.
    """
    kind = type(obj)
    if kind is types.FunctionType:
        own = obj.__code__ is _DISPATCH and not has_a_home(obj)
        return _reduce_dispatch(obj) if own else NotImplemented
    if kind is contextvars.ContextVar:
        return _reduce_context_variable(obj)
    if kind is contextvars.Context:
        return context, (), list(obj.items()), None, None, fill_context
    handler: Any = getattr(sys.modules.get("logging"), "Handler", None)
    if handler is not None and issubclass(kind, handler) and not hasattr(kind, "__setstate__"):
        state = {name: value for name, value in vars(obj).items() if name != "lock"}
        return _MADE, (kind,), state, None, None, fill_handler
    if kind is functools.singledispatchmethod:
        return singledispatchmethod, (obj.func, obj.dispatcher)
    if kind.__name__ == "SystemRandom" and kind.__module__ == "random":
        return kind, ()
    if target == _HERE and is_of_argparse(kind):
        reduction = obj.__reduce_ex__(5)
        return (*reduction[:2], with_suppress(reduction[2]), *reduction[3:])
    if kind.__name__ == "KeyWrapper" and kind.__module__ == "functools":
        held = tuple(each for each in gc.get_referents(obj) if each is not kind)
        # Before Python 3.10 the garbage collector does not know the function of the wrapper, and nothing else names it.
        return (comparison_key, held) if held else NotImplemented
    if kind.__name__ == "_GeneratorContextManager" and kind.__module__ == "contextlib":
        # A generator that has begun belongs to its process. As a decorator, a context manager never begins its own
        # generator.
        begun = inspect.getgeneratorstate(obj.gen) != inspect.GEN_CREATED
        return NotImplemented if begun else (kind, (obj.func, obj.args, obj.kwds))
    if kind.__name__ == "ForwardRef" and kind.__module__ in ("typing", "annotationlib"):
        facts = (obj.__forward_arg__, obj.__forward_module__, getattr(obj, "__forward_is_class__", False))
        return forward_reference, facts
    if kind is _ALIAS and not has_a_home(obj):
        return _reduce_alias(obj, target)
    # The class of `sys.version_info` cannot make another object.
    if kind.__module__ == "sys" and isinstance(obj, tuple):
        names = [name for name, value in vars(kind).items() if inspect.ismemberdescriptor(value)]
        return facts_of_python, (kind.__name__, names, [getattr(obj, name) for name in names])
    if kind.__module__ in ("weakref", "_weakrefset", "builtins"):
        return _reduce_weak(obj)
    if kind.__name__ == "Struct" and kind.__module__ == "_struct":
        return struct, (obj.format,)
    if any(each.__name__ == "JSONDecoder" and each.__module__ == "json.decoder" for each in kind.__mro__):
        state = {name: value for name, value in vars(obj).items() if name != "scan_once"}
        return _MADE, (kind,), state, None, None, fill_decoder
    return NotImplemented


def fill_handler(handler: Any, state: dict[str, Any]) -> None:
    """Give a handler of log records its state, and a lock."""
    vars(handler).update(state)
    handler.createLock()


def context() -> contextvars.Context:
    """Make an empty context."""
    return contextvars.Context()


def fill_context(target: contextvars.Context, values: list[tuple[contextvars.ContextVar[Any], Any]]) -> None:
    """Set variables in a context."""
    for variable, value in values:
        target.run(variable.set, value)


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


def comparison_key(compare: Callable[[Any, Any], int], *value: Any) -> Any:
    """Make what `cmp_to_key` returns, or the key of a value."""
    key = functools.cmp_to_key(compare)
    return key(*value) if value else key


def fill_decoder(decoder: Any, state: dict[str, Any]) -> None:
    """Give a decoder of JSON its state, and what reads texts by it."""
    vars(decoder).update(state)
    decoder.scan_once = importlib.import_module("json.scanner").make_scanner(decoder)


def facts_of_python(name: str, names: list[str], values: Sequence[Any]) -> Any:
    """Make a tuple that looks like the one with these facts of a Python."""
    make: Any = collections.namedtuple
    return make(name, names)(*values)


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


def singledispatchmethod(function: Callable[..., Any], dispatcher: Any) -> Any:
    """Make such a method with the implementations of `dispatcher`."""
    method = functools.singledispatchmethod(function)
    method.dispatcher = dispatcher
    return method


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


def _reduce_alias(alias: Any, target: tuple[int, int]) -> tuple[Any, ...]:
    # An older Python has no such aliases, so the type itself goes in place of its name.
    if target < (3, 12):
        if _contains(alias.__value__, alias):
            raise pickle.PicklingError("the type %s refers to itself, which needs Python 3.12" % alias.__name__)
        return same, (alias.__value__,)
    parameters = alias.__type_params__
    # The type refers to its parameters, so they must exist before it.
    if parameters:
        return type_alias, (alias.__name__, alias.__module__, parameters, [alias.__value__])
    value: list[Any] = []
    args = (alias.__name__, alias.__module__, parameters, value)
    return type_alias, args, (value, alias.__value__), None, None, fill_alias


def _contains(kind: Any, alias: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Return whether a type is made of this alias."""
    parts = [*(getattr(kind, "__args__", None) or ()), *([kind.__value__] if type(kind) is _ALIAS else [])]
    return kind is alias or any(_contains(part, alias, (*seen, kind)) for part in parts if part not in seen)


def same(value: Any) -> Any:
    """Return what an alias stands for."""
    return value


def type_alias(name: str, module: str, parameters: tuple[Any, ...], value: list[Any]) -> Any:
    """Make what the statement `type X = ...` makes; its type, in which it may stand, comes as `value[0]`."""
    alias = getattr(sys.modules.get(module), name, None)
    if type(alias) is _ALIAS:
        return alias
    if not name.isidentifier():
        raise ValueError("%r is no name of a type" % name)
    scope: dict[str, Any] = {"__name__": module, "make": _ALIAS, "value": value, "parameters": parameters}
    if parameters:
        exec("%s = make(%r, value[0], type_params=parameters)" % (name, name), scope)
    else:
        # The statement reads `value[0]` only when the type is first asked for, which may be after `fill_alias`.
        exec("type %s = value[0]" % name, scope)
    return scope[name]


def fill_alias(_: Any, state: tuple[list[Any], Any]) -> None:
    """Give an alias its type."""
    holder, value = state
    holder.append(value)
