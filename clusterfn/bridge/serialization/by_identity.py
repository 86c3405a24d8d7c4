"""What is known of classes, by what they are: a metaclass may take two of them for equal, or have no hash."""

from __future__ import annotations

import copyreg
import functools
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Generic, TypeVar

V = TypeVar("V")


class ByIdentity(Generic[V]):
    """A dict whose keys are classes, which it holds no longer than others do."""

    def __init__(self, content: Mapping[type, V] = {}) -> None:
        self._held: dict[int, tuple[weakref.ref[type], V]] = {}
        for cls, value in content.items():
            self[cls] = value

    def __setitem__(self, cls: type, value: V) -> None:
        number = id(cls)
        forget = functools.partial(_forget, self._held, number)
        self._held[number] = (weakref.ref(cls, forget), value)

    def __getitem__(self, cls: type) -> V:
        reference, value = self._held[id(cls)]
        return value

    def get(self, cls: type, default: Any = None) -> Any:
        """Return what is known of a class, or the default."""
        found = self._held.get(id(cls))
        return default if found is None else found[1]

    def __contains__(self, cls: type) -> bool:
        return id(cls) in self._held

    def __iter__(self) -> Iterator[type]:
        classes = [reference() for reference, _ in list(self._held.values())]
        return iter([cls for cls in classes if cls is not None])


def _forget(held: dict[int, Any], number: int, _: object) -> None:
    # Python calls this before the memory of the class is free, so no other class has its id yet.
    held.pop(number, None)


def cached(function: Callable[[Any], V]) -> Callable[[Any], V]:
    """Call a function once for each class."""
    known: ByIdentity[V] = ByIdentity()

    @functools.wraps(function)
    def call(cls: Any) -> V:
        if cls not in known:
            known[cls] = function(cls)
        return known[cls]

    return call


class Reducers:
    """What reduces the objects of a class: a table of its own, and what is registered with `copyreg` now.

    Args:
        own: The own table, which comes first.
    """

    def __init__(self, own: Mapping[type, Any]) -> None:
        self._own = {id(cls): (cls, reduce) for cls, reduce in own.items()}

    def __getitem__(self, cls: type) -> Any:
        reduce = self._own.get(id(cls), (cls, None))[1] or registered(cls)
        if reduce is None:
            raise KeyError(id(cls))
        return reduce


def registered(cls: type) -> Any:
    """Return what is registered with `copyreg` for a class, or None."""
    return next((reduce for each, reduce in list(copyreg.dispatch_table.items()) if each is cls), None)
