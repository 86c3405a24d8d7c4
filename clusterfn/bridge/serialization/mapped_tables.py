"""Tables of SQLAlchemy beside mapped classes, as copies by themselves: the classes make their own there.

A pickle of such a table holds a copy of all that its base class knows, with which the classes have nothing to do. With
one class go all others of its base, and the tables: they find each other by text, as in `relationship("Child")`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import stand_ins

if TYPE_CHECKING:
    from .hints import Hints

sqlalchemy: Any = stand_ins.Library("sqlalchemy")


def with_tables(obj: Any, begun: Iterable[type], hints: Hints) -> stand_ins.MadeThere:
    """Return what goes for what is pickled: that, and after it what its mapped classes find by text.

    Args:
        obj: What is pickled.
        begun: The classes that have been pickled; more come with `obj`.
        hints: Takes note if there is more than `obj`.
    """
    return stand_ins.MadeThere(complete, obj, _Rest(begun, hints))


class _Rest:
    def __init__(self, begun: Iterable[type], hints: Hints) -> None:
        self._begun, self._hints = begun, hints

    def __reduce__(self) -> tuple[Any, ...]:
        registries = [each for each in map(_registry_of, self._begun) if each is not None]
        classes = [mapper.class_ for each in dict.fromkeys(registries) for mapper in each.mappers]
        tables = [table for each in dict.fromkeys(registries) for table in each.metadata.tables.values()]
        self._hints.used = self._hints.used or bool(classes)
        return list, ((*classes, *tables),)


def _registry_of(cls: Any) -> Any:
    """Return what knows the other mapped classes of a class's base; None for any other class."""
    own = vars(cls).get("registry") or getattr(vars(cls).get("__mapper__"), "registry", None)
    return own if type(own).__name__ == "registry" and type(own).__module__.startswith("sqlalchemy.") else None


def complete(obj: Any, _: list[Any]) -> Any:
    """Return what was pickled, when all that it finds by text is there."""
    return obj


def reduce(obj: Any, _: object) -> Any:
    """Reduce a table, column or metadata that belongs to a base of mapped classes; NotImplemented for any other."""
    kind = type(obj).__name__
    metadata = obj if kind == "MetaData" else getattr(obj, "metadata", None) if kind == "Table" else None
    if kind == "Column" and type(getattr(obj, "table", None)).__name__ == "Table":
        metadata = obj.table.metadata
    base = None if metadata is None else _base_of(metadata)
    if base is None:
        return NotImplemented
    if obj is metadata:
        return getattr, (base, "metadata")
    if kind == "Column":
        return column_of, (obj.table, obj.key)
    mapped = [each.class_ for each in base.registry.mappers if vars(each.class_).get("__table__") is obj]
    return (getattr, (mapped[0], "__table__")) if mapped else _reduce_table(obj)


def _base_of(metadata: Any) -> Any:
    """Return the base class whose tables are in this; None if it is of no class."""
    orm: Any = sys.modules.get("sqlalchemy.orm")
    bases: list[Any] = getattr(getattr(orm, "DeclarativeBase", None), "__subclasses__", list)()
    every = [*bases, *object.__subclasses__()]
    return next((each for each in every if vars(each).get("metadata") is metadata and hasattr(each, "registry")), None)


def _reduce_table(obj: Any) -> Any:
    # A copy in metadata of its own: a pickle of the table itself holds all other tables of the base.
    return table, (obj.metadata, obj.key, obj.to_metadata(sqlalchemy.MetaData()))


def table(metadata: Any, key: str, copy: Any) -> Any:
    """Return the table of that name, or make it."""
    existing = metadata.tables.get(key)
    return copy.to_metadata(metadata) if existing is None else existing


def column_of(owner: Any, key: str) -> Any:
    """Return a column of a table."""
    return owner.columns[key]
