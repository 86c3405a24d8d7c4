"""Check an outcome that a host published: the function itself may have written anything. Asks no host."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_TEXTS = (list, str)
# The type of each field that is read, and of the entries of a list. All but `kind` may be null, or missing.
_TYPES: Mapping[str, tuple[type, type | None]] = {
    "kind": (str, None), "stage": (str, None), "message": (str, None), "signal": (str, None), "hint": (str, None),
    "node": (str, None), "code": (int, None), "attempt": (int, None), "superseded_by": (int, None),
    "exception": (dict, str), "value": (dict, int), "usage": (dict, None), "retried": (dict, None),
    "checkpoint": (bool, None), "cause": (dict, None),
    "evidence": _TEXTS, "notes": _TEXTS, "earlier": _TEXTS, "left": (list, list),
}  # fmt: skip


_USED = ("wall_s", "cpu_s", "peak_memory_bytes", "items", "longest_s")
_USED_OF_GPU = ("peak_memory_bytes", "mean_use_percent")
_USED_NOW, _USED_NOW_OF_GPU = ("cores", "memory_bytes"), ("memory_bytes", "use_percent")
_DEEPEST_CAUSE = 20
# A larger number is no count, and cannot be divided or shown as a time.
_MOST = 1 << 63


def read(data: bytes) -> dict[str, Any]:
    """Parse the content of outcome.json.

    Raises:
        ValueError: It is damaged; the message says how.
    """
    try:
        return checked(json.loads(data))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def checked(fields: Any) -> dict[str, Any]:
    """Check the type of every field of an outcome, which the function itself may have written.

    Raises:
        ValueError: One has another; the message names it.
    """
    if not isinstance(fields, dict) or fields.get("kind") is None:
        raise ValueError("it has no valid kind of outcome")
    for name, (expected, each) in _TYPES.items():
        value = fields.get(name)
        if value is not None and not (
            _is(value, expected) and all(_entry_is(*entry, each) for entry in _entries(value))
        ):
            raise ValueError(f"its {name!r} is {_shown(value)}")
    for name, value in [*fields.items(), *(fields.get("value") or {}).items()]:
        if isinstance(value, (int, float)) and not -_MOST < value < _MOST:
            raise ValueError(f"its {name!r} is {_shown(value)}")
    if not is_usage(fields.get("usage") or {}):
        raise ValueError(f"its 'usage' is {_shown(fields['usage'])}")
    if (fields.get("value") or {}).get("size", 0) < 0:
        raise ValueError("its value has a negative size")
    cause, depth = fields.get("cause"), 0
    while isinstance(cause, dict):
        cause, depth = cause.get("cause"), depth + 1
        if depth > _DEEPEST_CAUSE:
            raise ValueError("its causes are nested too deeply")
    return fields


def _shown(value: Any) -> str:
    # `reprlib` limits the depth: a value from the host may be nested deeply enough to exhaust the stack of `repr`.
    return reprlib.repr(value).encode("ascii", "backslashreplace").decode()[:80]


def is_usage(usage: Any) -> bool:
    """Whether what a job used, or uses now, is in numbers, for which people and tables take it."""
    return _has_numbers(usage, _USED, _USED_OF_GPU) and _has_numbers(
        usage.get("now") or {}, _USED_NOW, _USED_NOW_OF_GPU
    )


def _has_numbers(usage: Any, names: Sequence[str], names_of_gpu: Sequence[str]) -> bool:
    gpus = (usage.get("gpus") or []) if isinstance(usage, dict) else None
    if not (isinstance(gpus, list) and all(isinstance(each, dict) for each in gpus)):
        return False
    used = [usage.get(name) for name in names] + [each.get(name) for each in gpus for name in names_of_gpu]
    return all(each is None or (type(each) in (int, float) and -_MOST < each < _MOST) for each in used)


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _is(value: Any, expected: type) -> bool:
    return isinstance(value, expected) and not (expected is int and isinstance(value, bool))


def _entry_is(name: Any, value: Any, expected: type | None) -> bool:
    # A list here is the name and size of a file.
    if expected is list:
        return isinstance(value, list) and len(value) == 2
    return expected is None or name == "missing" or _is(value, expected)
