"""Classes that a call made, such as `make_dataclass`: as that call, by what the class tells.

There is no statement of such a class to send, and its parts are those of one version of Python, or cannot be pickled.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Collection, Iterator
from typing import Any

from . import stand_ins
from .classes import core

sqlalchemy: Any = stand_ins.Library("sqlalchemy")
orm: Any = stand_ins.Library("sqlalchemy.orm")


def reduce(cls: Any) -> tuple[Callable[..., type], tuple[Any, ...], dict[str, Any]] | None:
    """Return what makes such a class, its arguments and the attributes that it does not make; None for another."""
    own = vars(cls)
    if type(cls).__name__ == "DeclarativeMeta" and "registry" in own and "__mapper__" not in own:
        schema, naming = cls.metadata.schema, dict(cls.metadata.naming_convention)
        facts = (cls.__name__, tuple(each for each in cls.__bases__ if each is not object), schema, naming)
        return declarative_base, (*facts, cls.__module__), dict(added(cls, _OF_DECLARATIVE))
    if "__dataclass_fields__" in own and "__pydantic_validator__" not in own:
        fields = [each for each in _fields(cls) if each.name in own.get("__annotations__", {})]
        return data_class, _dataclass_facts(cls, fields), dict(added(cls, {each.name for each in fields}))
    if typing.is_typeddict(cls) if sys.version_info >= (3, 10) else type(cls).__name__ == "_TypedDictMeta":
        return typed_dict, (cls.__name__, dict(cls.__annotations__), cls.__total__, cls.__module__), {}
    return None


def added(cls: type, own_names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that the library did not make; those of these names are its own."""
    for name, value in vars(cls).items():
        if name in own_names:
            continue
        inner = getattr(value, "__func__", getattr(value, "fget", value))
        # From Python 3.13 on, the library wraps `__repr__`.
        inner = inspect.unwrap(inner) if callable(inner) else inner
        code = getattr(inner, "__code__", None)
        if code is not None:
            library = code.co_filename.startswith("<") or inner.__globals__.get("__name__") in _LIBRARIES
            if not library or not name.startswith("__"):
                yield name, value
        elif name == "__doc__":
            # The text may have been set after the class was made.
            yield from [(name, value)] if isinstance(value, str) else []
        elif not name.startswith("__") and not inspect.ismemberdescriptor(value):
            yield name, value


_LIBRARIES = ("dataclasses", "enum", "reprlib")


_OF_DECLARATIVE = {"registry", "_sa_registry", "metadata", "__init__", "__class_getitem__"}


def declarative_base(
    name: str, bases: Any, schema: Any, naming: Any, module: str, tracker: str, extra: None
) -> Any:  # fmt: skip
    """Make a class as SQLAlchemy's `declarative_base` does."""
    metadata = sqlalchemy.MetaData(schema=schema, naming_convention=naming)
    base = orm.declarative_base(name=name, metadata=metadata, **({"cls": bases} if bases else {}))
    return _tracked(base, module, tracker)


def _tracked(cls: Any, module: str, tracker: str) -> Any:
    cls.__module__ = module
    return core._lookup_class_or_track(tracker, cls)


def _dataclass_facts(cls: Any, fields: Any) -> tuple[Any, ...]:
    parameters = cls.__dataclass_params__
    usual = {"init": True, "repr": True, "eq": True, "match_args": True}
    values = {name: getattr(parameters, name, usual.get(name, False)) for name in _DATACLASS}
    options = {name: value for name, value in values.items() if value != usual.get(name, False)}
    # The constructor calls `__post_init__` only if it exists when the constructor is made. The function itself arrives
    # later.
    if "__post_init__" in vars(cls):
        options["namespace"] = {"__post_init__": None}
    entries = [(each.name, each.type, dataclass_field(each)) for each in fields]
    return cls.__name__, entries, cls.__bases__, options, cls.__module__


def _fields(cls: Any) -> list[Any]:
    """Return the fields, and the other parameters of the constructor."""
    kinds: Any = dataclasses
    every = cls.__dataclass_fields__.values()
    return [each for each in every if each._field_type in (kinds._FIELD, kinds._FIELD_INITVAR)]


_DATACLASS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen", "match_args", "kw_only", "slots", "weakref_slot")


def dataclass_field(field: Any) -> dict[str, Any]:
    """Return the arguments of `field()` that make such a field."""
    defaults = {name: getattr(field, name) for name in ("default", "default_factory")}
    defaults = {name: value for name, value in defaults.items() if value is not dataclasses.MISSING}
    for name, usual in (("init", True), ("repr", True), ("hash", None), ("compare", True)):
        if getattr(field, name) != usual:
            defaults[name] = getattr(field, name)
    if getattr(field, "kw_only", False) is True:
        defaults["kw_only"] = True
    return {**defaults, "metadata": dict(field.metadata)}


def data_class(
    name: str, fields: list[tuple[str, Any, Any]], bases: Any, options: Any, module: str, tracker: str, extra: None
) -> Any:
    """Make a class as `make_dataclass` does."""
    entries = [(key, kind, dataclasses.field(**facts)) for key, kind, facts in fields]
    return _tracked(dataclasses.make_dataclass(name, entries, bases=bases, **options), module, tracker)


def typed_dict(name: str, fields: Any, total: bool, module: str, tracker: str, extra: None) -> Any:
    """Make a class as `TypedDict("Name", {...})` does."""
    make: Any = typing.TypedDict
    return _tracked(make(name, fields, total=total), module, tracker)
