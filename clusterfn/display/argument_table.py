"""The arguments of many calls as a table: a column for each parameter, and for each named field of its value."""

from __future__ import annotations

import math
import numbers
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any

from clusterfn.bridge.attributes import is_a
from clusterfn.display.labels import DEPTH, LONG, fields_of, leaves, named_arguments, open_value, shown
from clusterfn.packing.dependencies import JobArgument

# Characters of a string in a table.
_LONGEST = 1000


def argument_table(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], constants: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the arguments of each call by the names of the function's parameters, as JSON can hold them.

    Example:
        >>> argument_table(lambda lr, model: 0, [(0.1, "mlp"), (1, [2])], {"epochs": 3})[1]
        {'lr': 1, 'model': '[2]', 'epochs': 3}
    """
    same = _all_columns(constants.items())
    return [{**_all_columns(row), **same} for row in named_arguments(function, calls)]


def _all_columns(row: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {key: part for name, value in row for key, part in columns(name, value).items()}


def columns(name: str, value: object) -> dict[str, Any]:
    """Return what a table has of an argument: a number, string, bool or None as it is, of others a text.

    What has named fields, such as a dict or a dataclass, has a column for each of them, too.

    Example:
        >>> columns("cfg", {"lr": 0.1, "data": PurePath("a/b")})
        {'cfg': "{'lr': 0.1, 'data': a/b}", 'cfg.lr': 0.1, 'cfg.data': 'a/b'}
    """
    parts = {key: plain(open_value(key, part)) for key, part in leaves(name, value).items() if key != name}
    return {name: plain(open_value(name, value)), **parts}


def plain(value: Any) -> Any:
    """Return a number, string, bool or None as JSON has it; of others, a short text."""
    if value is None or issubclass(type(value), bool):
        return value
    if issubclass(type(value), str) and not issubclass(type(value), Enum) and len(value) < _LONGEST:
        return str(value)
    if issubclass(type(value), Enum) or not is_a(value, numbers.Number):
        return shown(value, LONG)
    # This includes integers of numpy.
    if is_a(value, numbers.Integral):
        return int(value)
    if is_a(value, numbers.Real) and not is_a(value, numbers.Rational):
        return float(value)
    return shown(value, LONG)


def kept_arguments(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], constants: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the small arguments that a table has as the objects that they are, by their names."""
    same = {name: value for name, value in constants.items() if _is_kept(value)}
    return [
        {**{name: value for name, value in row if _is_kept(value)}, **same} for row in named_arguments(function, calls)
    ]


def _is_kept(value: object) -> bool:
    return not issubclass(type(value), (bool, int, float, str, JobArgument, type(None))) and is_small(value)


def is_small(value: object) -> bool:
    """Whether a value takes so little memory that it can be kept: no arrays, no long texts, few members."""
    return _count(value, DEPTH) <= LONG


def _count(value: Any, depth: int) -> float:
    if value is None or issubclass(type(value), (bool, int, float, complex, Enum, PurePath, type, types.FunctionType)):
        return 1
    if issubclass(type(value), str):
        return 1 if len(value) <= LONG else math.inf
    members: Any = fields_of(value)
    if members is None and issubclass(type(value), (list, tuple, set, frozenset)):
        members = dict(enumerate(value)) if len(value) <= LONG else None
    if members is None:
        return 1 if is_a(value, numbers.Number) else math.inf
    return 1 + sum(_count(each, depth - 1) for each in members.values()) if depth else math.inf
