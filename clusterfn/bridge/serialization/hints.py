"""Names that only annotations use: strings, which no code of a function or class looks up.

`typing.get_type_hints`, dataclasses and pydantic look them up where the function or class is loaded. What such a name
means travels if it is of the script, or of the standard library. A module or class of another package goes only with a
class whose statement is executed there, and is left out where that package is missing.

Libraries look such names up in the `__dict__` of a module, which on a host is another one. `found_in_module` shows them
there while a class is made again.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import classes, stand_ins

_DEEPEST = 10


def attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - the user's metaclass or object may raise anything
        return None


class Hints:
    """Whether annotations' names go into a pickle, and whether one has."""

    def __init__(self) -> None:
        self.used = False

    def of(
        self, owner: Any, scope: Mapping[str, Any], goes_by_name: Callable[[Any], bool], packages: bool = False
    ) -> dict[str, Any]:
        """Return what the names in the annotations of a function or class mean.

        Args:
            owner: The function or class.
            scope: Its globals.
            goes_by_name: Whether the other side can import an object.
            packages: Whether modules and classes of installed packages go, as by `stand_ins.if_there`.
        """
        kept = vars(owner).get("__annotations__") if issubclass(type(owner), type) else owner.__annotations__
        if not isinstance(kept, dict) or not kept:
            return {}
        texts = [text for value in list(kept.values()) for text in _texts(value)]
        names = dict.fromkeys(name for text in texts for name in _names(text) if name in scope)
        values = {name: scope[name] for name in names if _travels(scope[name], goes_by_name)}
        if packages:
            others = ((name, stand_ins.if_there(scope[name])) for name in names if name not in values)
            values.update({name: other for name, other in others if other is not None})
        self.used = self.used or bool(values)
        return values


def reduce_type(kind: Any) -> Any:
    """Reduce a type that an installed package defines for annotations; NotImplemented for any other object.

    Another version of the package may lack it: what `numpy.typing.ArrayLike` is made of is private. No function fails
    for want of a type in its annotations.
    """
    is_protocol = isinstance(kind, type) and vars(kind).get("_is_protocol") is True
    if type(kind).__name__ not in _FOR_ANNOTATIONS and not is_protocol:
        return NotImplemented
    home, name = kind.__module__, kind.__name__
    return (type_of_package, (home, name)) if attribute(sys.modules.get(home), name) is kind else NotImplemented


_FOR_ANNOTATIONS = ("TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "_TypedDictMeta")


def type_of_package(module: str, name: str) -> Any:
    """Return the type of that name, or what stands for one that this version of the package lacks."""
    try:
        return stand_ins.by_name(module, name)
    except (ImportError, AttributeError):
        return UnknownType


class UnknownType:
    """Stands in an annotation for a type that this version of a package lacks."""

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the strings in an annotation: itself, or in what typing made of it."""
    if isinstance(value, str):
        yield value
    elif type(value).__name__ == "ForwardRef":
        yield value.__forward_arg__
    elif depth < _DEEPEST and not isinstance(value, type(None)):
        parts = attribute(value, "__args__")
        for part in parts if isinstance(parts, tuple) else ():
            yield from _texts(part, depth + 1)


@functools.lru_cache(maxsize=4096)
def _names(text: str) -> tuple[str, ...]:
    # Most of what is pickled has no annotation.
    import ast

    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        # An annotation may be any text, such as a note for people.
        return ()
    inner = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return (*names, *(name for part in inner if part != text for name in _names(part)))


def _travels(value: Any, goes_by_name: Callable[[Any], bool]) -> bool:
    kind = type(value)
    if kind.__module__ == "typing" or kind is getattr(types, "UnionType", None):
        # The value is an alias such as List[Node], or a type variable.
        return True
    if issubclass(type(value), types.ModuleType):
        return _is_of_library(value)
    if not issubclass(type(value), type):
        return False
    return not goes_by_name(value) or _is_of_library(sys.modules.get(value.__module__))


def _is_of_library(module: Any) -> bool:
    facts = getattr(module, "__dict__", {})
    file = facts.get("__file__")
    return classes.is_of_library(file) if isinstance(file, str) else facts.get("__name__") in sys.builtin_module_names


@contextlib.contextmanager
def found_in_module(scope: dict[str, Any]) -> Iterator[None]:
    """Let the module of these globals have those that it lacks, while the statement of a class is executed."""
    module = sys.modules.get(str(scope.get("__name__")))
    names = scope if module is None else vars(module)
    with _looking:
        lacking = {name: value for name, value in scope.items() if name not in names}
        names.update(lacking)
        try:
            yield
        finally:
            for name, value in lacking.items():
                # The statement, or another thread, may have given the module another meaning of it.
                if names.get(name) is value:
                    del names[name]


_looking = threading.RLock()
