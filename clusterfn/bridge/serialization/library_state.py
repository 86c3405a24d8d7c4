"""Objects of the standard library between two minor versions of Python, which keep other attributes in them.

Loading runs no constructor, so an object lacks what only the constructor of the other version sets. It gets what that
constructor sets by default; where this cannot be known, loading raises `OtherState` instead of failing in a later call.
"""

from __future__ import annotations

import ast
import copyreg
import dis
import importlib
import inspect
import os
import sys
import textwrap
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Optional

Facts = tuple[tuple[str, tuple[str, ...]], ...]  # of each class of the library: its name, what its constructor sets
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_MADE: Any = copyreg.__newobj__  # type: ignore[attr-defined]
# Classes that keep the same in other ways -> the attributes that make one again, in the order of its arguments.
_CALLS = {
    "statistics.NormalDist": ("mean", "stdev"),
    "importlib.metadata.EntryPoint": ("name", "value", "group"),
    "traceback.FrameSummary": ("filename", "lineno", "name"),
}
_facts: weakref.WeakKeyDictionary[type, Facts] = weakref.WeakKeyDictionary()


class OtherState(Exception):
    """An object of the standard library of another Python does not work in this one."""


def reduce(obj: Any) -> Any:
    """Reduce an object with a class of the standard library for another version of Python; else NotImplemented."""
    cls = type(obj)
    names = _CALLS.get(f"{cls.__module__}.{cls.__qualname__}")
    if names is not None:
        return called, (cls.__module__, cls.__qualname__, *(getattr(obj, name) for name in names))
    if cls in copyreg.dispatch_table or not _facts_of(cls):
        return NotImplemented
    if cls.__module__ == "configparser" and cls.__qualname__ in ("ConfigParser", "RawConfigParser"):
        return _reduce_parser(obj)
    reduction = obj.__reduce_ex__(5)
    if not isinstance(reduction, tuple) or reduction[0] is not _MADE:
        return NotImplemented
    make, args, state, items, pairs = (*reduction, None, None, None)[:5]
    return make, args, (state, sys.version_info[:2], _facts_of(cls)), items, pairs, fill


def called(module: str, qualname: str, *args: Any) -> Any:
    """Make an object by a call of its class."""
    return getattr(importlib.import_module(module), qualname)(*args)


def _reduce_parser(obj: Any) -> tuple[Any, ...]:
    names = ("delimiters", "strict", "allow_no_value", "empty_lines_in_values", "interpolation")
    options = {name: getattr(obj, "_" + name) for name in names}
    prefixes = getattr(obj, "_prefixes", None)  # Python 3.13 and up
    options["comment_prefixes"] = prefixes.full if prefixes else obj._comment_prefixes
    options["inline_comment_prefixes"] = prefixes.inline if prefixes else obj._inline_comment_prefixes
    options.update(dict_type=obj._dict, default_section=obj.default_section)
    options["converters"] = {name: made for name, made in obj._converters._data.items() if made is not None}
    if getattr(obj, "_allow_unnamed_section", False):
        options["allow_unnamed_section"] = True
    sections = {name: dict(content) for name, content in obj._sections.items()}
    return parser, (type(obj).__qualname__, options, dict(obj._defaults), sections)


def parser(name: str, options: dict[str, Any], defaults: dict[str, Any], sections: dict[Any, dict[str, Any]]) -> Any:
    """Make a parser of configparser with this content, as it was read."""
    made = getattr(importlib.import_module("configparser"), name)(**options)
    made._defaults.update(defaults)
    for section, content in sections.items():
        made.add_section(section)
        made._sections[section].update(content)
    return made


def fill(obj: Any, told: tuple[Any, tuple[int, int], Facts]) -> None:
    """Give an object its state, and the other attributes that constructors of this version set.

    Raises:
        OtherState: It would lack something, or this version has no place for a part of its state.
    """
    state, version, facts = told
    dropped = _set_state(obj, state)
    there = dict(facts)
    for cls in type(obj).__mro__:
        before = set(there.get(cls.__qualname__, ()))
        function = _constructor(cls)
        if function is None or not before:
            continue
        assigned = _assigned_by(cls, function)
        missing = [name for name in assigned if name not in before and not _has(obj, name)]
        gone = dropped or [name for name in before - set(_names_set(function)) if _has(obj, name)]
        for name in missing:
            value = None if gone else _default(function, assigned[name])
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


def _facts_of(cls: type) -> Facts:
    """Return the names that the constructors of the library's classes set, for this class and its bases."""
    if cls not in _facts:
        found = [(each.__qualname__, _constructor(each)) for each in cls.__mro__]
        _facts[cls] = tuple((name, _names_set(function)) for name, function in found if function is not None)
    return _facts[cls]


def _constructor(cls: type) -> Optional[types.FunctionType]:
    function = vars(cls).get("__init__")
    if not isinstance(function, types.FunctionType):
        return None
    file = function.__code__.co_filename
    return function if file.startswith(_LIBRARY) and "site-packages" not in file else None


def _names_set(function: types.FunctionType) -> tuple[str, ...]:
    names = (each.argval for each in dis.get_instructions(function) if each.opname == "STORE_ATTR")
    return tuple(dict.fromkeys(names))


def _assigned_by(cls: type, function: types.FunctionType) -> dict[str, ast.expr]:
    """Return the attributes that a constructor sets in any case, and to what."""
    try:
        tree: Any = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # a library without its source
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
