"""Objects of the standard library between two minor versions of Python, which keep other attributes in them.

Loading runs no constructor, so an object lacks what only the constructor of the other version sets. It gets what that
constructor sets by default; where this cannot be known, loading raises `OtherState` instead of failing in a later call.
"""

from __future__ import annotations

import ast
import copyreg
import dataclasses
import dis
import importlib
import inspect
import os
import sys
import textwrap
import traceback
import types
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from . import by_identity, factories, stand_ins, standard_library

# For each class of the library, its name and the attributes that its constructor sets.
Facts = tuple[tuple[str, tuple[str, ...]], ...]
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_MADE: Any = copyreg.__newobj__  # type: ignore[attr-defined]
# Python versions keep the state of these classes in different ways. The attributes, in this order, are the arguments
# that make an object again.
_CALLS = {
    "statistics.NormalDist": ("mean", "stdev"),
    "importlib.metadata.EntryPoint": ("name", "value", "group"),
}


class OtherState(Exception):
    """An object of the standard library of another Python does not work in this one."""


def reduce(obj: Any) -> Any:
    """Reduce an object with a class of the standard library for another version of Python; else NotImplemented."""
    cls = type(obj)
    names = _CALLS.get(f"{cls.__module__}.{cls.__qualname__}")
    if names is not None:
        return called, (cls.__module__, cls.__qualname__, *(getattr(obj, name) for name in names))
    if cls.__module__ == "traceback" and cls.__qualname__ == "FrameSummary":
        return frame_summary, (obj.filename, obj.lineno, obj.name, obj.line, obj.locals)
    if cls.__module__ == "timeit" and cls.__qualname__ == "Timer":
        return _reduce_timer(obj)
    if cls.__module__ == "traceback" and cls.__qualname__ == "TracebackException":
        return _reduce_traceback(obj)
    if cls.__module__ == "dataclasses" and cls.__qualname__ == "Field":
        of_class = (obj.name, obj.type, obj._field_type.name, getattr(obj, "kw_only", False)) if obj.name else None
        return field, (factories.dataclass_field(obj), of_class)
    if cls.__module__ in ("ast", "_ast") and isinstance(obj, ast.AST):
        return node, (cls.__qualname__,), dict(vars(obj)), None, None, fill_node
    if by_identity.registered(cls) or not _facts_of(cls):
        return NotImplemented
    base = next((each for each in cls.__mro__ if each.__module__ == "configparser"), object)
    if base.__qualname__ in ("ConfigParser", "RawConfigParser"):
        return _reduce_parser(obj, base)
    reduction = obj.__reduce_ex__(5)
    if not isinstance(reduction, tuple) or reduction[0] is not _MADE:
        return NotImplemented
    make, args, state, items, pairs = (*reduction, None, None, None)[:5]
    if standard_library.is_of_argparse(cls):
        state = standard_library.with_suppress(state)
    # Another version may lack the attributes that are what the constructors set them to by default.
    defaults = _defaults_of(cls)
    unchanged = tuple(name for name, value in defaults.items() if getattr(obj, name, defaults) is value)
    return make, args, (state, sys.version_info[:2], _facts_of(cls), unchanged), items, pairs, fill


def called(module: str, qualname: str, *args: Any) -> Any:
    """Make an object by a call of its class."""
    return getattr(importlib.import_module(module), qualname)(*args)


def frame_summary(filename: str, lineno: Any, name: str, line: Any, variables: Any) -> Any:
    """Make a line of a traceback, with its text: the file may be on another machine."""
    summary = traceback.FrameSummary(filename, lineno, name, lookup_line=False, line=line)
    summary.locals = variables
    return summary


def _reduce_timer(timer: Any) -> tuple[Any, ...]:
    inner, code = timer.inner, timer.inner.__code__
    names = code.co_varnames[: code.co_argcount]
    # A timer of functions, instead of texts, has them as defaults of this inner function.
    defaults = dict(zip(reversed(names), reversed(inner.__defaults__ or ())))
    used = {name: inner.__globals__[name] for name in code.co_names if name in inner.__globals__}
    return timer_of, (timer.src, timer.timer, defaults, used)


def timer_of(source: str, clock: Any, defaults: dict[str, Any], used: dict[str, Any]) -> Any:
    """Make a timer of the text that `timeit` compiles."""
    import timeit

    timer: Any = timeit.Timer(timer=clock)
    timer.src, scope = source, {"__name__": "timeit", **used}
    exec(compile(source, "<timeit-src>", "exec"), scope, defaults)
    timer.inner = defaults["inner"]
    return timer


_OF_TRACEBACK = (
    "stack", "__cause__", "__context__", "__suppress_context__", "__notes__", "exceptions", "_str", "filename",
    "lineno", "end_lineno", "text", "offset", "end_offset", "msg", "max_group_width", "max_group_depth",
)  # fmt: skip


def _reduce_traceback(shown: Any) -> tuple[Any, ...]:
    kind = getattr(shown, "exc_type", None) if sys.version_info < (3, 13) else shown._exc_type
    state = {name: getattr(shown, name) for name in _OF_TRACEBACK if hasattr(shown, name)}
    return traceback_of, (kind,), state, None, None, fill_traceback


def traceback_of(kind: Any) -> Any:
    """Make a description of an exception of this class, for `fill_traceback`."""
    error = kind.__new__(kind) if kind is not None else None
    return traceback.TracebackException(kind, error, None)  # type: ignore[arg-type]


def fill_traceback(shown: Any, state: dict[str, Any]) -> None:
    """Give the description of an exception its parts."""
    for name, value in state.items():
        object.__setattr__(shown, name, value)


def field(arguments: dict[str, Any], of_class: Any) -> Any:
    """Make a field of a dataclass as `field()` does, and tell it what its class knows of it."""
    new_field: Any = dataclasses.field(**arguments)
    if of_class is not None:
        new_field.name, new_field.type, kind, kw_only = of_class
        new_field._field_type = getattr(dataclasses, kind)
        if hasattr(new_field, "kw_only"):
            new_field.kw_only = kw_only
    return new_field


def node(name: str) -> Any:
    """Make a node of a syntax tree, for `fill_node`."""
    return getattr(ast, name)()


def fill_node(target: Any, parts: dict[str, Any]) -> None:
    """Give a node its parts.

    Raises:
        OtherState: It has a part for which this version has no place.
    """
    names = {*target._fields, *target._attributes}
    for name, value in parts.items():
        if name in names:
            setattr(target, name, value)
        elif value:
            raise OtherState("ast.%s has no %s in Python %d.%d" % (type(target).__name__, name, *sys.version_info[:2]))
    for name in target._fields:
        if name not in parts:
            setattr(target, name, [] if name == "type_params" else None)


def _reduce_parser(obj: Any, base: type) -> tuple[Any, ...]:
    names = ("delimiters", "strict", "allow_no_value", "empty_lines_in_values", "interpolation")
    options = {name: getattr(obj, "_" + name) for name in names}
    # From Python 3.13 on, the parser keeps both kinds of prefixes in one object.
    prefixes = getattr(obj, "_prefixes", None)
    options["comment_prefixes"] = prefixes.full if prefixes else obj._comment_prefixes
    options["inline_comment_prefixes"] = prefixes.inline if prefixes else obj._inline_comment_prefixes
    options.update(dict_type=obj._dict, default_section=obj.default_section)
    options["converters"] = {
        name: converter for name, converter in obj._converters._data.items() if converter is not None
    }
    if getattr(obj, "_allow_unnamed_section", False):
        options["allow_unnamed_section"] = True
    sections = {name: dict(content) for name, content in obj._sections.items()}
    plain_parser: Any = base
    standard_names = {*vars(plain_parser()), "_comment_prefixes", "_inline_comment_prefixes"}
    # The user may have set attributes of their own, such as `optionxform`.
    own = {name: value for name, value in vars(obj).items() if name not in standard_names}
    args = (base.__qualname__, options, dict(obj._defaults), sections, type(obj))
    return parser, args, own or None, None, None, stand_ins.set_state


def parser(
    name: str, options: dict[str, Any], defaults: dict[str, Any], sections: dict[Any, dict[str, Any]], cls: Any = None
) -> Any:
    """Make a parser of configparser with this content, as it was read; `cls` is its class, if that is not `name`."""
    base = getattr(importlib.import_module("configparser"), name)
    config = base.__new__(cls or base)
    base.__init__(config, **options)
    config._defaults.update(defaults)
    for section, content in sections.items():
        base.add_section(config, section)
        config._sections[section].update(content)
    return config


def fill(obj: Any, parts: tuple[Any, ...]) -> None:
    """Give an object its state, and the other attributes that constructors of this version set.

    Raises:
        OtherState: It would lack something, or this version has no place for a part of its state.
    """
    state, version, facts, *unchanged = parts
    unset = unchanged[0] if unchanged else ()
    dropped = [name for name in _set_state(obj, state) if name not in unset]
    original = dict(facts)
    for cls in type(obj).__mro__:
        before = set(original.get(cls.__qualname__, ()))
        function = _constructor(cls)
        if function is None or not before:
            continue
        assigned = _assigned_by(cls, function)
        missing = [name for name in assigned if name not in before and not _has(obj, name)]
        removed = dropped or [name for name in before - {*_names_set(function), *unset} if _has(obj, name)]
        for name in missing:
            value = None if removed else _default(function, assigned[name])
            if value is None:
                raise OtherState(_said(cls, version, missing))
            object.__setattr__(obj, name, value[0])
        if dropped:
            raise OtherState(_said(cls, version, dropped))


def _said(cls: type, version: tuple[int, int], names: Sequence[str]) -> str:
    return "%s of Python %d.%d does not work in Python %d.%d, which differs in its attributes: %s" % (
        "%s.%s" % (cls.__module__, cls.__qualname__), *version, *sys.version_info[:2], ", ".join(names)
    )  # fmt: skip


def _set_state(obj: Any, state: Any) -> list[str]:
    """Set a state as pickle does; return the names for which the object has no place."""
    if state is None:
        return []
    if hasattr(obj, "__setstate__"):
        obj.__setstate__(state)
        return []
    own, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if own:
        vars(obj).update(own)
    dropped = []
    for name, value in (slots or {}).items():
        try:
            object.__setattr__(obj, name, value)
        except AttributeError:
            dropped.append(name)
    return dropped


def _has(obj: Any, name: str) -> bool:
    try:
        object.__getattribute__(obj, name)
    except AttributeError:
        return False
    return True


@by_identity.cached
def _defaults_of(cls: type) -> dict[str, Any]:
    assignments = [(function, _assigned_by(each, function)) for each in cls.__mro__ if (function := _constructor(each))]
    every = (
        (name, _default(function, value)) for function, assigned in assignments for name, value in assigned.items()
    )
    return {name: value[0] for name, value in every if value is not None}


@by_identity.cached
def _facts_of(cls: type) -> Facts:
    """Return the names that the constructors of the library's classes set, for this class and its bases."""
    constructors = [(each.__qualname__, _constructor(each)) for each in cls.__mro__]
    return tuple((name, _names_set(function)) for name, function in constructors if function is not None)


def _constructor(cls: type) -> Optional[types.FunctionType]:
    function = vars(cls).get("__init__")
    if not isinstance(function, types.FunctionType):
        return None
    return function if is_of_library(function.__code__.co_filename) else None


def is_of_library(file: str) -> bool:
    """Return whether it is a file of the standard library."""
    return file.startswith(_LIBRARY) and "site-packages" not in file


def _names_set(function: types.FunctionType) -> tuple[str, ...]:
    names = (each.argval for each in dis.get_instructions(function) if each.opname == "STORE_ATTR")
    return tuple(dict.fromkeys(names))


def _assigned_by(cls: type, function: types.FunctionType) -> dict[str, ast.expr]:
    """Return the attributes that a constructor sets in any case, and to what."""
    try:
        tree: Any = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        # The library may be installed without its source.
        return {}
    private = "_%s__" % cls.__name__.lstrip("_")
    return {private + name[2:] if name[:2] == "__" else name: value for name, value in _assignments(tree.body[0].body)}


def _assignments(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.If):
            one, other = dict(_assignments(node.body)), dict(_assignments(node.orelse))
            yield from ((name, one[name]) for name in one if name in other)
        elif isinstance(node, ast.With):
            yield from _assignments(node.body)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    yield target.attr, node.value


def _default(function: types.FunctionType, value: ast.expr) -> Optional[tuple[Any]]:
    """Return what an attribute has by default: a constant, or the default of the parameter that it is set to."""
    if isinstance(value, ast.Name):
        parameter = inspect.signature(function).parameters.get(value.id)
        return None if parameter is None or parameter.default is parameter.empty else (parameter.default,)
    try:
        return (ast.literal_eval(value),)
    except ValueError:
        return None
