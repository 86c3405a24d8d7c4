"""Classes that a call made, such as `attrs.make_class`: as that call, by what the class tells.

There is no statement of such a class to send, and its parts are those of one version of a library or of Python.
For the models of pydantic see `models`.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import sys
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from . import models, stand_ins
from .classes import core

attr: Any = stand_ins.Library("attr")
msgspec: Any = stand_ins.Library("msgspec")
sqlalchemy: Any = stand_ins.Library("sqlalchemy")
orm: Any = stand_ins.Library("sqlalchemy.orm")


def reduce(cls: Any) -> tuple[Callable[..., type], tuple[Any, ...], dict[str, Any]] | None:
    """Return what makes such a class, its arguments and the attributes that it does not make; None for another."""
    own = vars(cls)
    if "__attrs_attrs__" in own:
        return attrs_class, _attrs_facts(cls), dict(added(cls, {each.name for each in own["__attrs_attrs__"]}))
    # `attrs.fields` returns an object of such a class, which no import finds.
    if cls.__bases__ == (tuple,) and cls.__name__.endswith("Attributes"):
        names = [name for name, value in own.items() if type(value) is property]
        return tuple_class, (cls.__name__, names, cls.__module__), {}
    if type(cls).__name__ == "StructMeta" and hasattr(cls, "__struct_config__"):
        return struct, _struct_facts(cls), dict(added(cls, set(cls.__struct_fields__)))
    if type(cls).__name__ == "DeclarativeMeta" and "registry" in own and "__mapper__" not in own:
        schema, naming = cls.metadata.schema, dict(cls.metadata.naming_convention)
        facts = (cls.__name__, tuple(each for each in cls.__bases__ if each is not object), schema, naming)
        return declarative_base, (*facts, cls.__module__), dict(added(cls, _OF_DECLARATIVE))
    if "__pydantic_decorators__" in own:
        found = models.facts_of_class(cls)
        return None if found is None else (models.model, found, {})
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


_LIBRARIES = ("attr._make", "attr._next_gen", "dataclasses", "enum", "reprlib")


_OF_DECLARATIVE = {"registry", "_sa_registry", "metadata", "__init__", "__class_getitem__"}


def declarative_base(
    name: str, bases: Any, schema: Any, naming: Any, module: str, tracker: str, extra: None
) -> Any:  # fmt: skip
    """Make a class as SQLAlchemy's `declarative_base` does."""
    metadata = sqlalchemy.MetaData(schema=schema, naming_convention=naming)
    base = orm.declarative_base(name=name, metadata=metadata, **({"cls": bases} if bases else {}))
    return _tracked(base, module, tracker)


def _struct_facts(cls: Any) -> tuple[Any, ...]:
    own = vars(cls).get("__annotations__", cls.__struct_fields__)
    fields = []
    for field in msgspec.structs.fields(cls):
        if field.name in own:
            defaults = {name: getattr(field, name) for name in ("default", "default_factory")}
            defaults = {name: value for name, value in defaults.items() if value is not msgspec.NODEFAULT}
            fields.append((field.name, field.type, {**defaults, "name": field.encode_name}))
    options = {name: getattr(cls.__struct_config__, name) for name in _OF_STRUCT}
    options["kw_only"] = bool(fields) and not any(name in cls.__match_args__ for name, *_ in fields)
    return cls.__name__, fields, tuple(cls.__bases__), options, cls.__module__


_OF_STRUCT = (
    "frozen", "eq", "order", "array_like", "gc", "repr_omit_defaults", "omit_defaults", "forbid_unknown_fields",
    "weakref", "dict", "cache_hash", "tag", "tag_field",
)  # fmt: skip


def struct(name: str, fields: Any, bases: Any, options: Any, module: str, tracker: str, extra: None) -> Any:
    """Make a class as msgspec's `defstruct` does."""
    entries = [(key, kind, msgspec.field(**facts)) for key, kind, facts in fields]
    return _tracked(msgspec.defstruct(name, entries, bases=bases, module=module, **options), module, tracker)


def tuple_class(name: str, names: list[str], module: str, tracker: str, extra: None) -> Any:
    """Make a class as attrs does for the fields of another: a tuple whose items have names."""
    items = {each: property(operator.itemgetter(place)) for place, each in enumerate(names)}
    return _tracked(type(name, (tuple,), {"__slots__": (), **items}), module, tracker)


def _attrs_facts(cls: Any) -> tuple[Any, ...]:
    own = vars(cls)
    fields = {each.name: _attrs_field(each) for each in own["__attrs_attrs__"] if not each.inherited}
    methods = (("repr", "repr"), ("eq", "eq"), ("order", "lt"))
    options: dict[str, Any] = {name: f"__{special}__" in own for name, special in methods}
    options["str"] = _is_of_attrs(own.get("__str__"))
    setter = own.get("__setattr__")
    frozen = getattr(setter, "__name__", "") == "_frozen_setattrs"
    if not frozen and callable(own.get("__hash__")):
        options["hash"] = True
    options["slots"], options["frozen"], options["init"] = "__slots__" in own, frozen, "__attrs_init__" not in own
    options["weakref_slot"] = "__weakref__" in own.get("__slots__", ("__weakref__",))
    code = getattr(own.get("__init__", own.get("__attrs_init__")), "__code__", None)
    names = (*code.co_names, *code.co_consts) if code is not None else ()
    options["auto_exc"], options["cache_hash"] = "BaseException" in names, "_attrs_cached_hash" in names
    options["match_args"] = "__match_args__" in own or sys.version_info < (3, 10)
    options["on_setattr"] = _hook_of_all(setter)
    options["hooks"] = {name: len(inspect.signature(own[name]).parameters) > 1 for name in _HOOKS if name in own}
    return cls.__name__, fields, cls.__bases__, options, cls.__module__


def _is_of_attrs(function: Any) -> bool:
    return getattr(inspect.unwrap(function), "__globals__", {}).get("__name__") == "attr._make" if function else False


def _hook_of_all(setter: Any) -> Any:
    """Return what a class calls when an attribute is set that has no hook of its own; None if it calls nothing."""
    if not _is_of_attrs(setter):
        return None
    hooks = inspect.getclosurevars(setter).nonlocals.get("sa_attrs", {})
    return next((hook for field, hook in hooks.values() if field.on_setattr is None), None)


# The constructor calls these only if they exist when it is made. The functions themselves arrive later.
_HOOKS = ("__attrs_pre_init__", "__attrs_post_init__")


def _attrs_field(field: Any) -> dict[str, Any]:
    arguments = {}
    for name, usual in _ATTRS_FIELD.items():
        value = getattr(field, name, usual)
        if value is not attr.NOTHING and value != usual:
            arguments[name] = value
    for name in ("eq", "order"):
        key = getattr(field, f"{name}_key", None)
        if key is not None:
            arguments[name] = key
    arguments["metadata"] = dict(field.metadata)
    alias = getattr(field, "alias", None)
    return arguments if alias in (None, field.name.lstrip("_")) else {**arguments, "alias": alias}


_ATTRS_FIELD: dict[str, Any] = {
    "default": object(), "validator": None, "repr": True, "eq": True, "order": True, "hash": None, "init": True,
    "converter": None, "type": None, "kw_only": False, "on_setattr": None,
}  # fmt: skip


def attrs_class(
    name: str, fields: Mapping[str, Mapping[str, Any]], bases: Any, options: Any, module: str, tracker: str, extra: None
) -> Any:
    """Make a class as `attrs.make_class` does."""
    # These keep the places of hooks, which come later. The constructor is made for one with arguments, or without.
    by_args: Any = {True: lambda self, *args, **kwargs: None, False: lambda self: None}
    hooks = {key: by_args[has_args] for key, has_args in options.pop("hooks").items()}
    body = {**{key: attr.ib(**arguments) for key, arguments in fields.items()}, **hooks}
    return _tracked(attr.make_class(name, body, bases, **options), module, tracker)


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
