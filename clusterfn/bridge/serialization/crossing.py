"""Pickles for another minor version of Python, or of a library: functions and classes as text.

What is sent by its name between equal versions is sent by its name here too. All else that holds code is sent as the
text that `source` and `statement` find, or is rejected.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import enum
import functools
import inspect
import io
import operator
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from . import classes, pickler, source, stand_ins, statement
from .classes import core
from .pickler import HERE, Version
from .source import NoSource, Snippet

if TYPE_CHECKING:
    import pickle

    from .hints import Hints

# `types.UnionType` exists from Python 3.10 on.
_UNION: Any = getattr(types, "UnionType", None)
R = TypeVar("R")
_OF_A_MODULE = ("__package__", "__name__", "__path__", "__file__")


class Cycle(Exception):
    """A class is needed for its own statement, by a global that perhaps only its functions use."""


def dumps(obj: object, target: Version = None) -> bytes:
    """Pickle `obj` for that version, buffers included; raise NoSource if its code cannot go to that version."""

    def dump(make: Callable[..., pickler.Pickler]) -> bytes:
        out = io.BytesIO()
        make(out).dump(obj)
        return out.getvalue()

    if target is None or target == HERE:
        try:
            return dump(functools.partial(pickler.Pickler, in_parts=False))
        except pickler.LibraryMade:
            target = HERE
    return twice(dump, target)


def twice(work: Callable[[Callable[..., pickler.Pickler]], R], target: tuple[int, int]) -> R:
    """Return `work(make_pickler)`: first with picklers that are not late; after a cycle, with late ones.

    For the same Python, classes go in parts where late ones need a statement that is not found.
    """
    try:
        return work(functools.partial(TextPickler, target))
    except Cycle:
        if target == HERE:
            with contextlib.suppress(NoSource):
                return work(functools.partial(TextPickler, target, late=True))
        return work(pickler_for(target))


def pickler_for(target: Version) -> Callable[..., pickler.Pickler]:
    """Return what makes a pickler for that version, from a file, a callback for buffers and one for objects."""
    return pickler.Pickler if target is None or target == HERE else functools.partial(TextPickler, target, late=True)


class TextPickler(pickler.Pickler):
    """Pickles for a Python of another minor version.

    Args:
        target: That version.
        late: Whether globals that only the functions of a class use follow the class; else they go before it.
    """

    def __init__(
        self,
        target: tuple[int, int],
        file: BinaryIO,
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
        on_object: Callable[[object], Any] | None = None,
        *,
        late: bool = False,
        hints: Hints | None = None,
    ) -> None:
        super().__init__(file, buffer_callback, on_object, hints=hints)
        self._look = on_object
        self.target = target
        self._same_python = target == HERE
        self._late = late
        # Classes that go as statements, with the globals of each.
        self._begun: dict[type, Mapping[str, Any]] = {}
        # Those of these classes that are made before what is pickled now.
        self._made: set[type] = set()

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is _Made:
            self._made.add(obj.cls)
            return dict, ()
        if type(obj) is types.CodeType and not self._same_python:
            # Byte code of one minor version means nothing to another, and could crash it, so code goes as its source.
            return source.compiled, (self._known_there(source.of_code(obj)),)
        if _UNION is not None and type(obj) is _UNION:
            return union, obj.__args__
        return super().reducer_override(obj)

    def has_methods(self, kind: type, owner: Any) -> bool:
        return not (issubclass(type(owner), type) and self._is_unmade(owner))

    def _known_there(self, snippet: Snippet) -> Snippet:
        if self.target < HERE:
            source.reject_newer(snippet, self.target)
        return snippet

    def _dynamic_function_reduce(self, func: types.FunctionType) -> tuple[Any, ...]:
        reduction = super()._dynamic_function_reduce(func)
        (code, scope, *_), (attributes, slots) = reduction[1:3]
        slots["__globals__"] = self._not_begun(slots["__globals__"], func.__globals__)
        if self._same_python:
            return reduction
        cells = dict(zip(code.co_freevars, func.__closure__ or ()))
        slots["_contents"] = dict(zip(code.co_freevars, slots.get("_contents", ())))
        return make_function, (code, scope, cells), (attributes, slots), None, None, fill_function

    def _not_begun(self, names: Mapping[str, Any], scope: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out classes whose own statements define them there: one of them may be what is being pickled."""

        def begun(name: str, value: Any) -> bool:
            is_global_class = issubclass(type(value), type) and value.__qualname__ == name
            return is_global_class and self._begun.get(value) is scope

        return {name: value for name, value in names.items() if name != "__builtins__" and not begun(name, value)}

    def reduce_class(self, cls: type, reduction: Any) -> Any:
        plain = super().reduce_class(cls, reduction)
        if plain is NotImplemented:
            others = () if self._same_python else stand_ins.other_homes(cls)
            return (stand_ins.by_one_name, (*others, (cls.__module__, cls.__qualname__))) if others else NotImplemented
        in_parts = self._same_python and not classes.is_made_by_library(cls)
        if plain[0] is not classes.remake_class or in_parts:
            return plain
        if cls in self._begun:
            raise NoSource(_ITSELF % cls.__qualname__) if self._late else Cycle(cls)
        around = _around(cls)
        return (getattr, (around, cls.__name__)) if around is not None else self._as_statement(cls, plain)

    def _as_statement(self, cls: type, plain: tuple[Any, ...]) -> tuple[Any, ...]:
        snippet = statement.of_class(cls)
        outer = statement.outer_values(cls, snippet.free) if snippet is not None else None
        if snippet is None or outer is None:
            made = None if self._same_python else _without_statement(cls, plain)
            return made or classes.in_parts(cls, plain)
        self._known_there(snippet)
        for function in statement.functions(cls):
            # Methods are not pickled by themselves, but `on_object` must see what they import.
            if self._look is not None and function.__code__.co_filename == snippet.file:
                self._look(function)
        scope = statement.home(cls)
        self._begun[cls] = scope
        shared = self._shared(scope)
        used = statement.needed(snippet, scope)
        if not self._late and any(self._is_unmade(value) for value in used[0].values() if value is not cls):
            raise Cycle(cls)
        at_once, every = (self._not_begun(names, scope) for names in used)
        before = at_once if self._late else every
        own = (function for function in statement.functions(cls) if function.__code__.co_filename == snippet.file)
        hints = [self.hints_of(owner, scope, packages=True) for owner in (cls, *own)]
        named = self._not_begun({name: value for of_owner in hints for name, value in of_owner.items()}, scope)
        of_script = {
            name: value for name, value in named.items() if issubclass(type(value), type) and name not in before
        }
        before = {**{name: value for name, value in named.items() if name not in of_script}, **before}
        after = {name: value for name, value in {**of_script, **every}.items() if name not in before}
        modules = [
            stand_ins.MadeThere(stand_ins.imported, name) for name in statement.submodules(snippet, every.values())
        ]
        identity = (cls.__module__, cls.__qualname__, core._get_or_create_tracker_id(cls), *modules)
        # Classes that were registered with an abstract class are subclasses of it, but no statement names them.
        registered: list[type] = []
        if isinstance(cls, abc.ABCMeta):
            subclasses = (reference() for reference in abc._get_dump(cls)[0])  # type: ignore[attr-defined]
            registered = [subclass for subclass in subclasses if subclass is not None]
        state = (shared, after, statement.attributes(cls, snippet), registered, named, _Made(cls))
        return make_class, (identity, snippet, shared, before, outer), state, None, None, fill_class

    def _is_unmade(self, value: Any) -> bool:
        return issubclass(type(value), type) and value in self._begun and value not in self._made

    def _shared(self, scope: Mapping[str, Any]) -> dict[str, Any]:
        """Return the globals that all functions and classes with these globals will share when loaded."""
        shared: dict[str, Any] = self.globals_ref.setdefault(id(scope), {})
        if not shared:
            shared.update({name: scope[name] for name in _OF_A_MODULE if name in scope})
        return shared


class _Made:
    """Stands behind a class in a pickle, where it has been made."""

    def __init__(self, cls: type) -> None:
        self.cls = cls


_ITSELF = (
    "the class %s is needed before it is made: its decorators, bases or the body of its statement use an object that "
    "refers to it, such as a register; write both in a module of your own, or use the same Python on both sides"
)
_LOST = (
    "the class %s: its statement is not found, was changed since it was executed, uses variables of a function around "
    "it, or its name means something else by now; define it at the top level of a file, and call again from a "
    "fresh process"
)


def _around(cls: type) -> type | None:
    """Return the class that has this one as an attribute."""
    first, *rest = cls.__qualname__.split(".")
    value = statement.home(cls).get(first)
    for name in rest[:-1]:
        value = getattr(value, name, None)
    return value if rest and isinstance(value, type) and vars(value).get(rest[-1]) is cls else None


def _without_statement(cls: Any, plain: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Reduce a class that a call made to the call's arguments; None if only its parts are known."""
    tracker = core._get_or_create_tracker_id(cls)
    key = (cls.__module__, cls.__qualname__)
    if issubclass(cls, tuple) and cls.__bases__ == (tuple,) and hasattr(cls, "_field_defaults"):
        args = (cls.__name__, cls._fields, cls._field_defaults, cls.__module__, tracker, None)
        added = _added(cls, {*vars(collections.namedtuple("_", ())), *cls._fields} - {"__doc__"})
        return classes.remake_class, (*key, named_tuple, args), dict(added), None, None, classes.fill_made
    if issubclass(cls, enum.Enum) and _MAKES_MEMBERS.isdisjoint(
        function.__name__ for function in statement.functions(cls) if function.__module__ != "enum"
    ):
        members = {name: member.value for name, member in cls.__members__.items()}
        facts = (cls.__name__, cls.__bases__[-1], members, *key, tracker, None)
        added = ((name, value) for name, value in _added(cls, members) if name[0] != "_" or name[:2] == "__")
        return classes.remake_class, (*key, enumeration, facts), dict(added), None, None, classes.fill_made
    # A decorator or metaclass made the class, so only its statement can rebuild it.
    if issubclass(cls, (enum.Enum, tuple)) or "__dataclass_fields__" in vars(cls):
        raise NoSource(_LOST % cls.__qualname__)
    return None


_MAKES_MEMBERS = {"__new__", "__init__", "_generate_next_value_"}


def _added(cls: type, own_names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class that the call did not make; those of these names are its own."""
    for name, value in vars(cls).items():
        if name in own_names:
            continue
        inner = getattr(value, "__func__", getattr(value, "fget", value))
        # From Python 3.13 on, the library wraps `__repr__`.
        inner = inspect.unwrap(inner) if callable(inner) else inner
        code = getattr(inner, "__code__", None)
        if code is not None:
            made = code.co_filename.startswith("<") or inner.__globals__.get("__name__") in ("enum", "reprlib")
            if not made or not name.startswith("__"):
                yield name, value
        elif name == "__doc__":
            # The text may have been set after the class was made.
            yield from [(name, value)] if isinstance(value, str) else []
        elif not name.startswith("__") and not inspect.ismemberdescriptor(value):
            yield name, value


# A pickle names the functions below: they keep their names and their arguments.


def union(*members: Any) -> Any:
    """Make `X | Y`, which Python 3.9 does not have."""
    return typing.Union[members] if _UNION is None else functools.reduce(operator.or_, members)


def make_function(
    code: types.CodeType, scope: dict[str, Any], cells: Mapping[str, types.CellType] = {}
) -> types.FunctionType:
    """Make a function without its content, with the closure variables that this Python's code wants."""
    ordered = tuple(cells.get(name) or types.CellType() for name in code.co_freevars)
    scope["__builtins__"] = __builtins__
    return types.FunctionType(code, scope, code.co_name, None, ordered)


def fill_function(function: types.FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Give a function its attributes, globals and closure variables."""
    names = function.__code__.co_freevars
    slots = state[1]
    slots["_contents"] = [slots.get("_contents", {}).get(name, []) for name in names]
    classes.fill_function(function, state)


_unfilled: set[type] = set()


def make_class(
    identity: tuple[Any, ...],
    snippet: Snippet,
    scope: dict[str, Any],
    names: Mapping[str, Any],
    outer: Mapping[str, Any],
) -> type:
    """Return the caller's own class, or the one made before, or the one that the statement makes."""
    # The rest of `known` are modules. Unpickling has imported them already.
    module, qualname, tracker, *_ = identity
    cls = classes.known_class(module, qualname, tracker)
    if cls is None:
        scope.update(stand_ins.present(names))
        cls = statement.execute(snippet, scope, outer)
        cls.__qualname__ = qualname
        core._lookup_class_or_track(tracker, cls)
        _unfilled.add(cls)
    if not snippet.scope:
        scope[snippet.name] = cls
    return cls


def fill_class(cls: type, state: tuple[Any, ...]) -> None:
    """Give a class that `make_class` made its globals and attributes, once."""
    scope, names, attributes, registered, *named = state
    scope.update(names)
    for hints in named:
        classes.remember(hints)
    if cls not in _unfilled:
        return
    _unfilled.remove(cls)
    classes.set_attributes(cls, attributes)
    for subclass in registered:
        cls.register(subclass)  # type: ignore[attr-defined]


def named_tuple(
    name: str, fields: tuple[str, ...], defaults: Mapping[str, Any], module: str, tracker: str, extra: None
) -> Any:
    """Make a class as collections.namedtuple does."""
    make: Callable[..., type] = collections.namedtuple
    cls = make(name, fields, defaults=tuple(defaults.values()), module=module)
    return core._lookup_class_or_track(tracker, cls)


def enumeration(
    name: str, base: Any, members: Mapping[str, Any], module: str, qualname: str, tracker: str, extra: None
) -> Any:
    """Make a class as a call such as Enum("Color", "RED BLUE") does."""
    return core._lookup_class_or_track(tracker, base(name, dict(members), module=module, qualname=qualname))
