"""Whether an object that came back is the one that went: by its type, its content, and what it pickles of itself."""

from __future__ import annotations

import re
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

_MOST = 20_000  # parts that are compared; the rest of a larger object counts as the same
_DEEPEST = 40
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_PLAIN = (int, str, bytes, bytearray, bool, type(None), type(Ellipsis), type(NotImplemented), range, slice)


def difference(one: Any, other: Any) -> str:
    """Say where two objects differ; "" if they are the same."""
    return _Comparison().of(one, other, "it", 0)


class _Comparison:
    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[Any, Any]] = {}

    def of(self, one: Any, other: Any, path: str, depth: int) -> str:
        if one is other or (id(one), id(other)) in self._seen or depth > _DEEPEST or len(self._seen) > _MOST:
            return ""
        self._seen[id(one), id(other)] = (one, other)  # held, so that no id is used twice
        if type(one) is not type(other):
            by_value = type(one).__qualname__ == type(other).__qualname__ and type(one).__module__ == "__main__"
            if not by_value:
                return f"{path} is of type {_name(type(other))}, not {_name(type(one))}"
        if isinstance(one, (float, complex)):
            return "" if repr(one) == repr(other) else f"{path}: {other!r} is not {one!r}"
        if isinstance(one, _PLAIN):
            return "" if one == other else f"{path}: {other!r:.60} is not {one!r:.60}"
        found = _by_library(one, other, path)
        found = self._by_items(one, other, path, depth) if found is None else found
        found = _by_name(one, other, path) if found is None else found
        if found is not None:
            return found
        if _are_equal(one, other):
            return ""
        return self._by_state(one, other, path, depth)

    def _by_items(self, one: Any, other: Any, path: str, depth: int) -> str | None:
        if type(one) in (list, tuple, deque):
            return self._sequences(one, other, path, depth)
        if type(one) in (dict, OrderedDict):
            if _are_equal(list(one), list(other)):
                pairs = [(f"{path}[{key!r:.40}]", one[key], other[key]) for key in one]
                return next(filter(None, (self.of(a, b, where, depth + 1) for where, a, b in pairs)), "")
            return self._sequences(list(one.items()), list(other.items()), path, depth)
        if type(one) in (set, frozenset):
            if one == other:
                return ""
            return self._sequences(sorted(one, key=_shown), sorted(other, key=_shown), path, depth)
        return None

    def _sequences(self, one: Sequence[Any], other: Sequence[Any], path: str, depth: int) -> str:
        if len(one) != len(other):
            return f"{path} has {len(other)} parts, not {len(one)}"
        pairs = enumerate(zip(one, other))
        return next(filter(None, (self.of(a, b, f"{path}[{at}]", depth + 1) for at, (a, b) in pairs)), "")

    def _by_state(self, one: Any, other: Any, path: str, depth: int) -> str:
        """Compare what two objects give of themselves to pickle, or else their attributes, or else how they show."""
        for state in (_reduced, _attributes):
            parts, others = _attempt(state, one), _attempt(state, other)
            if parts is not None and others is not None:
                return self.of(parts, others, path, depth + 1)
        return "" if _shown(one) == _shown(other) else f"{path}: {_shown(other):.60} is not {_shown(one):.60}"


def _attempt(work: Callable[[Any], Any], value: Any) -> Any:
    try:
        return work(value)
    except BaseException:  # foreign code
        return None


def _reduced(value: Any) -> Any:
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return [reduced]
    _, args, state, items, pairs = (*reduced, None, None, None, None)[:5]
    return [args, state, list(items or ()), list(pairs or ())]


def _attributes(value: Any) -> Any:
    slots = {name for cls in type(value).__mro__ for name in _slots(cls)}
    found = {name: getattr(value, name) for name in sorted(slots) if hasattr(value, name)}
    found.update(getattr(value, "__dict__", {}))
    return found or None


def _slots(cls: type) -> list[str]:
    return [name for name, slot in vars(cls).items() if isinstance(slot, types.MemberDescriptorType)]


def _by_name(one: Any, other: Any, path: str) -> str | None:
    """Compare what is known by its name: classes, functions and modules."""
    if isinstance(one, types.FunctionType):
        same = one.__qualname__ == other.__qualname__ and one.__code__.co_code == other.__code__.co_code
        return "" if same else f"{path} is another function"
    if isinstance(one, (type, types.ModuleType, types.BuiltinFunctionType)):
        return "" if _name(one) == _name(other) else f"{path} is {_name(other)}, not {_name(one)}"
    if isinstance(one, types.MethodType):
        return "" if one.__func__ is other.__func__ else f"{path} is another method"
    return "" if isinstance(one, (weakref.ref, types.CodeType)) else None


def _by_library(one: Any, other: Any, path: str) -> str | None:
    """Compare arrays, frames and tensors by the function that their library has for that."""
    home = type(one).__module__.partition(".")[0]
    library = sys.modules.get(home)
    same: Any = None
    if home == "numpy" and hasattr(one, "dtype") and hasattr(one, "tobytes"):
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"{path} has {other.dtype} {other.shape}, not {one.dtype} {one.shape}"
        same = None if one.dtype.hasobject else one.tobytes() == other.tobytes()
        if one.dtype.hasobject and one.shape:
            return difference(one.tolist(), other.tolist())
    elif home in ("pandas", "polars", "pyarrow", "geopandas") and hasattr(one, "equals"):
        same = one.equals(other)
    elif home == "torch" and isinstance(one, getattr(library, "Tensor", ())):
        same = one.dtype == other.dtype and one.shape == other.shape and _are_equal_tensors(library, one, other)
    return None if same is None else "" if same else f"{path}: other content"


def _are_equal_tensors(torch: Any, one: Any, other: Any) -> bool:
    try:
        return bool(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))
    except Exception:
        return repr(one) == repr(other)


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return (one == other) is True
    except BaseException:
        return False


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', getattr(value, '__name__', ''))}"


def _shown(value: Any) -> str:
    try:
        return _ADDRESS.sub("0x", repr(value))
    except BaseException:
        return f"<{type(value).__name__}>"
