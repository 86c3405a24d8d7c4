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

from . import models


def reduce(cls: Any) -> tuple[Callable[..., type], tuple[Any, ...], dict[str, Any]] | None:
    """Return what makes such a class, its arguments and the attributes that it does not make; None for another."""
    own = vars(cls)
    if "__attrs_attrs__" in own:
        return attrs_class, _attrs_facts(cls), dict(added(cls, {each.name for each in own["__attrs_attrs__"]}))
    if cls.__bases__ == (tuple,) and cls.__name__.endswith("Attributes"):  # what `attrs.fields` returns
        names = [name for name, value in own.items() if type(value) is property]
        return tuple_class, (cls.__name__, names, cls.__module__), {}
    if "__pydantic_decorators__" in own:
        found = models.facts_of_class(cls)
        return None if found is None else (models.model, found, {})
    if "__dataclass_fields__" in own and "__pydantic_validator__" not in own:
        fields = [each for each in _fields(cls) if each.name in own.get("__annotations__", {})]
        return data_class, _dataclass_facts(cls, fields), dict(added(cls, {each.name for each in fields}))
    if typing.is_typeddict(cls) if sys.version_info >= (3, 10) else type(cls).__name__ == "_TypedDictMeta":
        return typed_dict, (cls.__name__, dict(cls.__annotations__), cls.__total__, cls.__module__), {}
    return None


def added(cls: type, made: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that the library did not make; those of these names are its own."""
    for name, value in vars(cls).items():
        if name in made:
            continue
        inner = getattr(value, "__func__", getattr(value, "fget", value))
        inner = inspect.unwrap(inner) if callable(inner) else inner  # `__repr__` is wrapped since Python 3.13
        code = getattr(inner, "__code__", None)
        if code is not None:
            library = code.co_filename.startswith("<") or inner.__globals__.get("__name__") in _LIBRARIES
            if not library or not name.startswith("__"):
                yield name, value
        elif not name.startswith("__") and not inspect.ismemberdescriptor(value):
            yield name, value


_LIBRARIES = ("attr._make", "attr._next_gen", "dataclasses", "enum", "reprlib")


def tuple_class(name: str, names: list[str], module: str, tracker: str, extra: None) -> Any:
    """Make a class as attrs does for the fields of another: a tuple whose items have names."""
    items = {each: property(operator.itemgetter(place)) for place, each in enumerate(names)}
    return _tracked(type(name, (tuple,), {"__slots__": (), **items}), module, tracker)


def _attrs_facts(cls: Any) -> tuple[Any, ...]:
    own = vars(cls)
    fields = {each.name: _attrs_field(each) for each in own["__attrs_attrs__"] if not each.inherited}
    made = (("repr", "repr"), ("eq", "eq"), ("order", "lt"))
    options: dict[str, Any] = {name: f"__{special}__" in own for name, special in made}
    setter = own.get("__setattr__")
    frozen = getattr(setter, "__name__", "") == "_frozen_setattrs"
    if not frozen and callable(own.get("__hash__")):
        options["hash"] = True
    options["slots"], options["frozen"], options["init"] = "__slots__" in own, frozen, "__attrs_init__" not in own
    options["hooks"] = {name: len(inspect.signature(own[name]).parameters) > 1 for name in _HOOKS if name in own}
    return cls.__name__, fields, cls.__bases__, options, cls.__module__


_HOOKS = ("__attrs_pre_init__", "__attrs_post_init__")  # the constructor calls them if they are there when it is made


def _attrs_field(field: Any) -> dict[str, Any]:
    import attr

    given = {}
    for name, usual in _ATTRS_FIELD.items():
        value = getattr(field, name, usual)
        if value is not attr.NOTHING and value != usual:
            given[name] = value
    for name in ("eq", "order"):
        key = getattr(field, f"{name}_key", None)
        if key is not None:
            given[name] = key
    given["metadata"] = dict(field.metadata)
    alias = getattr(field, "alias", None)
    return given if alias in (None, field.name.lstrip("_")) else {**given, "alias": alias}


_ATTRS_FIELD: dict[str, Any] = {
    "default": object(), "validator": None, "repr": True, "eq": True, "order": True, "hash": None, "init": True,
    "converter": None, "type": None, "kw_only": False, "on_setattr": None,
}  # fmt: skip


def attrs_class(
    name: str, fields: Mapping[str, Mapping[str, Any]], bases: Any, options: Any, module: str, tracker: str, extra: None
) -> Any:
    """Make a class as `attrs.make_class` does."""
    import attr

    hooks = {key: _takes_all if has_args else _takes_none for key, has_args in options.pop("hooks").items()}
    body = {**{key: attr.ib(**given) for key, given in fields.items()}, **hooks}
    return _tracked(attr.make_class(name, body, bases, **options), module, tracker)


def _takes_none(self: Any) -> None:
    """Keep the place of a hook, which comes later."""


def _takes_all(self: Any, *args: Any, **kwargs: Any) -> None:
    """The same of one with arguments."""


def _tracked(made: Any, module: str, tracker: str) -> Any:
    from .cloudpickle import cloudpickle  # type: ignore[import-not-found]

    made.__module__ = module
    return cloudpickle._lookup_class_or_track(tracker, made)


def _dataclass_facts(cls: Any, fields: Any) -> tuple[Any, ...]:
    parameters = cls.__dataclass_params__
    usual = {"init": True, "repr": True, "eq": True, "match_args": True}
    options = {
        name: getattr(parameters, name)
        for name in _DATACLASS
        if getattr(parameters, name, usual.get(name, False)) != usual.get(name, False)
    }
    if "__post_init__" in vars(cls):  # the constructor calls it if it is there when it is made; it comes later
        options["namespace"] = {"__post_init__": None}
    given = [(each.name, each.type, _dataclass_field(each)) for each in fields]
    return cls.__name__, given, cls.__bases__, options, cls.__module__


def _fields(cls: Any) -> list[Any]:
    """Return the fields, and the other parameters of the constructor."""
    kinds: Any = dataclasses
    every = cls.__dataclass_fields__.values()
    return [each for each in every if each._field_type in (kinds._FIELD, kinds._FIELD_INITVAR)]


_DATACLASS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen", "match_args", "kw_only", "slots", "weakref_slot")


def _dataclass_field(field: Any) -> dict[str, Any]:
    given = {name: getattr(field, name) for name in ("default", "default_factory")}
    given = {name: value for name, value in given.items() if value is not dataclasses.MISSING}
    for name, usual in (("init", True), ("repr", True), ("hash", None), ("compare", True)):
        if getattr(field, name) != usual:
            given[name] = getattr(field, name)
    if getattr(field, "kw_only", False) is True:
        given["kw_only"] = True
    return {**given, "metadata": dict(field.metadata)}


def data_class(
    name: str, fields: list[tuple[str, Any, Any]], bases: Any, options: Any, module: str, tracker: str, extra: None
) -> Any:
    """Make a class as `make_dataclass` does."""
    given = [(key, kind, dataclasses.field(**facts)) for key, kind, facts in fields]
    return _tracked(dataclasses.make_dataclass(name, given, bases=bases, **options), module, tracker)


def typed_dict(name: str, fields: Any, total: bool, module: str, tracker: str, extra: None) -> Any:
    """Make a class as `TypedDict("Name", {...})` does."""
    make: Any = typing.TypedDict
    return _tracked(make(name, fields, total=total), module, tracker)
