"""What pydantic makes: models of `create_model`, fields and adapters, by what they are made of.

Each version has other parts in them. Models of class statements travel as these: see `crossing`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from . import hints, stand_ins
from .classes import core

pydantic: Any = stand_ins.Library("pydantic")
pydantic_core: Any = stand_ins.Library("pydantic_core")
pydantic_fields: Any = stand_ins.Library("pydantic.fields")
networks: Any = stand_ins.Library("pydantic.networks")


def reduce(obj: Any) -> Any:
    """Reduce an object whose class is of pydantic; return NotImplemented if its own way will do."""
    name = type(obj).__name__
    if name == "FieldInfo" and hasattr(obj, "_attributes_set"):
        return field, _facts_of_field(obj)
    home = type(obj).__module__
    if home == "pydantic.networks" and hasattr(obj, "_url") or home.startswith("pydantic_core") and _are_plain_urls():
        return (url, (name, str(obj))) if name.endswith(("Url", "Dsn")) else NotImplemented
    if name == "ValidationError" and home.startswith("pydantic_core"):
        _, (title, lines, *more) = obj.__reduce__()
        # Newer versions have an object for a kind of errors of the user's own.
        kinds = [line["type"] if isinstance(line["type"], str) else str(line["type"].type) for line in lines]
        return validation_error, (title, [{**line, "type": kind} for line, kind in zip(lines, kinds)], *more)
    if name == "TypeAdapter":
        return adapter, (obj._type, obj._config, getattr(obj, "_module_name", None))
    return NotImplemented


def validation_error(title: str, lines: list[dict[str, Any]], *more: Any) -> Any:
    """Make an error with these lines, whose kinds may be the user's own or those of another version of pydantic."""
    make = pydantic_core.ValidationError.from_exception_data

    def known(line: dict[str, Any]) -> dict[str, Any]:
        try:
            make(title, [line], *more)
        except (KeyError, TypeError):
            return {**line, "type": pydantic_core.PydanticCustomError(line["type"], line["msg"], line.get("ctx"))}
        return line

    return make(title, [known(line) for line in lines], *more)


def reduce_function(function: types.FunctionType, hints_of: Callable[[Any], Mapping[str, Any]]) -> Any:
    """Reduce a function of the script that `validate_call` wraps; else NotImplemented.

    Args:
        function: Any function.
        hints_of: Returns what the names in the annotations of a function mean.
    """
    plain = vars(function).get("raw_function")
    if plain is None or "pydantic" not in function.__code__.co_filename:
        return NotImplemented
    for cell in function.__closure__ or ():
        held = cell.cell_contents
        # Newer versions of pydantic keep its bound `__call__`.
        held = getattr(held, "__self__", held)
        if type(held).__name__ == "ValidateCallWrapper":
            returns = getattr(held, "__return_pydantic_validator__", None) or getattr(held, "validate_return", None)
            return validated, (plain, _settings(held), bool(returns), hints_of(plain))
    return NotImplemented


def _settings(held: Any) -> dict[str, Any]:
    if hasattr(held, "config_wrapper"):
        return dict(held.config_wrapper.config_dict)
    # pydantic before 2.10 has no `config_wrapper` here, and keeps only these settings.
    _, (_, core) = held.__pydantic_validator__.__reduce__()
    return {name: value for name, value in (core or {}).items() if name in pydantic.ConfigDict.__annotations__}


def validated(function: Any, config: Any, returns: bool, names: Mapping[str, Any] = {}) -> Any:
    """Wrap a function as `validate_call` does, which looks up the names in its annotations."""
    for name, value in stand_ins.present(names).items():
        function.__globals__.setdefault(name, value)
    with hints.found_in_module(function.__globals__):
        return pydantic.validate_call(config=config, validate_return=returns)(function)


def _facts_of_field(info: Any) -> tuple[dict[str, Any], list[Any]]:
    attributes = dict(info._attributes_set)
    derived = list(map(repr, type(info)(**attributes).metadata))
    return attributes, [each for each in info.metadata if repr(each) not in derived]


def field(attributes: dict[str, Any], more: list[Any]) -> Any:
    """Make what pydantic knows of a field, as `Field()` does.

    Raises:
        TypeError: This pydantic has no such option of a field.
    """
    parameters = {*inspect.signature(pydantic.Field).parameters, "annotation"}
    for name in attributes:
        if name not in parameters:
            raise TypeError("pydantic %s has no Field(%s=...)" % (pydantic.VERSION, name))
    info = pydantic_fields.FieldInfo(**attributes)
    info.metadata += more
    return info


def _are_plain_urls() -> bool:
    """Return whether addresses are of two classes for all schemes, as before pydantic 2.10."""
    return not isinstance(pydantic.AnyUrl, type) or pydantic.AnyUrl.__module__.startswith("pydantic_core")


def url(kind: str, text: str) -> Any:
    """Make an address, of the class that this pydantic has for its scheme if the other one has none."""
    if kind not in ("Url", "MultiHostUrl"):
        return pydantic.TypeAdapter(getattr(networks, kind)).validate_python(text)
    if _are_plain_urls():
        return getattr(pydantic_core, kind)(text)
    scheme = text.partition(":")[0]
    names = ["HttpUrl", "WebsocketUrl", *sorted(networks.__all__)]
    constraints = [(name, getattr(getattr(networks, name), "_constraints", None)) for name in names]
    matching = (name for name, each in constraints if scheme in (getattr(each, "allowed_schemes", None) or ()))
    return pydantic.TypeAdapter(getattr(networks, next(matching, "AnyUrl"))).validate_python(text)


def adapter(kind: Any, config: Any, module: str | None = None) -> Any:
    """Make an adapter of a type, as one that this module makes."""
    return pydantic.TypeAdapter(kind, config=config, module=module)


def facts_of_class(cls: Any) -> tuple[Any, ...] | None:
    """Return the name, bases, fields, settings, other attributes and module of a model; None if it has more."""
    decorators = cls.__pydantic_decorators__
    own = vars(cls)
    names = ("field_validators", "model_validators", "field_serializers", "model_serializers", "computed_fields")
    decorated = {name: {key for key in getattr(decorators, name, {}) if key in own} for name in names}
    if any(decorated[name] for name in names[2:]):
        return None
    around = {}
    for name in names[:2]:
        for key in decorated[name]:
            info = getattr(decorators, name)[key].info
            around[key] = (name, getattr(info, "fields", ()), info.mode, getattr(info, "check_fields", None))
    inherited: dict[str, Any] = {}
    for base in reversed(cls.__bases__):
        inherited.update(getattr(base, "model_config", {}))
    settings = {key: value for key, value in cls.model_config.items() if inherited.get(key, cls) != value}
    kept = own.get("__pydantic_fields__") or own.get("model_fields") or {}
    fields = {}
    for key in own.get("__annotations__", {}):
        if key in kept:
            attributes, more = _facts_of_field(kept[key])
            attributes.pop("annotation", None)
            fields[key] = kept[key].annotation, attributes, more
    others = {key: value for key, value in own.items() if key in around or _is_added(value)}
    private = {key: value.default for key, value in own.get("__private_attributes__", {}).items()}
    return cls.__name__, cls.__bases__, fields, settings, {**others, **private}, around, cls.__module__


def _is_added(value: Any) -> bool:
    inner = getattr(value, "__func__", getattr(value, "fget", value))
    code = getattr(inner, "__code__", None)
    return code is not None and inner.__globals__.get("__name__", "").partition(".")[0] != "pydantic"


def model(
    name: str, bases: Any, fields: Mapping[str, Any], settings: Any, others: Any, around: Any, module: str,
    tracker: str, extra: None,
) -> Any:  # fmt: skip
    """Make a model as its class statement would."""
    body: dict[str, Any] = {"__module__": module, "__annotations__": {}, **others}
    for key, (kind, attributes, more) in fields.items():
        body["__annotations__"][key] = kind
        body[key] = field(attributes, more)
    for key, (which, names, mode, check) in around.items():
        if which == "field_validators":
            body[key] = pydantic.field_validator(*names, mode=mode, check_fields=check)(body[key])
        else:
            body[key] = pydantic.model_validator(mode=mode)(body[key])
    if settings:
        body["model_config"] = settings
    cls = types.new_class(name, bases, {}, lambda scope: scope.update(body))
    return core._lookup_class_or_track(tracker, cls)
