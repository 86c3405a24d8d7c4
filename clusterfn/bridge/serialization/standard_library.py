"""Objects of the standard library that a script makes at its top level and that neither pickle nor cloudpickle carries.

They keep locks, weak references, byte code or their own module's name beside what makes them. Each is reduced to the
latter, and made again by the same call.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import importlib
import inspect
import sys
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from . import stand_ins

_UNSET = object()


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
    if kind is functools.singledispatchmethod:
        return singledispatchmethod, (obj.func, obj.dispatcher)
    if kind.__name__ == "ForwardRef" and kind.__module__ in ("typing", "annotationlib"):
        facts = (obj.__forward_arg__, obj.__forward_module__, getattr(obj, "__forward_is_class__", False))
        return forward_reference, facts
    if kind is _ALIAS and not has_a_home(obj):
        return _reduce_alias(obj, target)
    if kind.__module__ == "sys" and isinstance(obj, tuple):  # `sys.version_info`, whose class can make no other one
        names = [name for name, value in vars(kind).items() if inspect.ismemberdescriptor(value)]
        return facts_of_python, (kind.__name__, names, tuple(obj))
    if kind.__module__ in ("weakref", "_weakrefset", "builtins"):
        return _reduce_weak(obj)
    if kind.__name__ == "Struct" and kind.__module__ == "_struct":
        return struct, (obj.format,)
    if kind.__name__ == "JSONDecoder" and kind.__module__ == "json.decoder":
        return stand_ins.with_keywords, (kind, {name: getattr(obj, name) for name in _OF_DECODER})
    return NotImplemented


_OF_DECODER = ("object_hook", "parse_float", "parse_int", "parse_constant", "strict", "object_pairs_hook")


def facts_of_python(name: str, names: list[str], values: tuple[Any, ...]) -> Any:
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
_ALIAS: Any = getattr(typing, "TypeAliasType", None)  # Python 3.12 and up


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
        if module is not main:  # multiprocessing has a second name for it
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
    if target < (3, 12):  # there the type itself does what its name does here
        return same, (alias.__value__,)
    parameters = alias.__type_params__
    if parameters:  # they stand in its type, so it cannot be made before them
        return type_alias, (alias.__name__, alias.__module__, parameters, [alias.__value__])
    value: list[Any] = []
    args = (alias.__name__, alias.__module__, parameters, value)
    return type_alias, args, (value, alias.__value__), None, None, fill_alias


def same(value: Any) -> Any:
    """Return what an alias stands for."""
    return value


def type_alias(name: str, module: str, parameters: tuple[Any, ...], value: list[Any]) -> Any:
    """Make what the statement `type X = ...` makes; its type, in which it may stand, comes as `value[0]`."""
    found = getattr(sys.modules.get(module), name, None)
    if type(found) is _ALIAS:
        return found
    if not name.isidentifier():
        raise ValueError("%r is no name of a type" % name)
    scope: dict[str, Any] = {"__name__": module, "make": _ALIAS, "value": value, "parameters": parameters}
    if parameters:
        exec("%s = make(%r, value[0], type_params=parameters)" % (name, name), scope)
    else:
        exec("type %s = value[0]" % name, scope)  # evaluated when it is first asked for
    return scope[name]


def fill_alias(_: Any, state: tuple[list[Any], Any]) -> None:
    """Give an alias its type."""
    holder, value = state
    holder.append(value)
