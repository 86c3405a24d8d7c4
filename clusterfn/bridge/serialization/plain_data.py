"""Values as plain data, for results="data": JSON with tags, and beside it the memory of arrays and of long texts.

A tag is a JSON object with one key that begins with `$`, followed by the parts of an object. `data_reader` reads it.
"""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import arrays, pickler, tensors

# A text or bytes of so many go beside the JSON.
_LARGE = 1 << 12
# JSON has every number, but Python reads no more than 4300 digits of one.
_LARGE_NUMBER = 1 << 64
_DEEPEST = 100
DTYPE = re.compile(
    r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SU]\d{1,9}|[mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?)"
)
TENSOR = re.compile(r"bool|u?int(?:8|16|32|64)|b?float16|float(?:32|64|8_e4m3fn|8_e5m2)|complex(?:32|64|128)")
# A path to a part of a value is shown so far.
_LONGEST_SHOWN = 150
_SEQUENCES = (tuple, set, frozenset)
_MAPPINGS = (dict, collections.OrderedDict, collections.Counter)
# torch notes this on what `state_dict()` returns.
NOTED = {"_metadata"}
PATHS: Mapping[str, type[pathlib.PurePath]] = {
    "PosixPath": pathlib.Path if os.name == "posix" else pathlib.PurePosixPath,
    "WindowsPath": pathlib.PureWindowsPath if os.name == "posix" else pathlib.Path,
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}


def _attributes(*names: str) -> Callable[[Any], Sequence[Any]]:
    return lambda value: [getattr(value, name) for name in names]


# The tag of each type is its name, and the parts of its objects are these.
_PARTS: Mapping[type, Callable[[Any], Sequence[Any]]] = {
    complex: _attributes("real", "imag"),
    datetime.timedelta: _attributes("days", "seconds", "microseconds"),
    datetime.date: _attributes("year", "month", "day"),
    datetime.datetime: _attributes("year", "month", "day", "hour", "minute", "second", "microsecond", "tzinfo", "fold"),
    datetime.timezone: lambda value: value.__getinitargs__(),
    decimal.Decimal: lambda value: [str(value)],
}


class NotData(Exception):
    """A part of a value is no plain data; its text says which one."""

    path = ""

    def __str__(self) -> str:
        path = self.path if len(self.path) < _LONGEST_SHOWN else f"{self.path[:_LONGEST_SHOWN]}…"
        return f"result{path} {self.args[0]}"


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """Return a value as JSON, and what goes beside it; raise NotData if it holds something else, or itself."""
    writer = _Writer()
    return json.dumps(writer.of(value), separators=(",", ":")).encode(), writer.buffers


class _Writer:
    def __init__(self) -> None:
        self.buffers: list[memoryview] = []

    def of(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is float or (kind is str and len(value) < _LARGE):
            return value
        if kind is int:
            return value if -_LARGE_NUMBER < value < _LARGE_NUMBER else {"$int": [hex(value)]}
        if depth > _DEEPEST:
            raise NotData(f"is nested more than {_DEEPEST} levels deep, or holds itself")
        if kind is list:
            return self._all(value, depth)
        if kind is dict and all(type(key) is str and key[:1] != "$" for key in value):
            return dict(zip(value, self._all(value.values(), depth, list(value))))
        if kind in _SEQUENCES:
            return {f"${kind.__name__}": self._all(value, depth)}
        if kind in _MAPPINGS:
            keys = list(value)
            entries = self._all(keys, depth), self._all(value.values(), depth, keys)
            return {f"${kind.__name__}": [*entries, self._noted(value, depth)]}
        tag, parts = self._parts(kind, value)
        return {tag: [self.of(part, depth + 1) for part in parts]}

    def _all(self, values: Iterable[Any], depth: int, names: Sequence[Any] | None = None) -> list[Any]:
        written: list[Any] = []
        try:
            for value in values:
                written.append(self.of(value, depth + 1))
        except NotData as inner:
            at = len(written)
            inner.path = f"[{at if names is None else ascii(names[at])[:60]}]{inner.path}"
            raise
        return written

    def _noted(self, value: Any, depth: int) -> Any:
        """Return what torch notes on an OrderedDict."""
        noted = getattr(value, "__dict__", {})
        if not noted.keys() <= NOTED:
            raise NotData("is a dict with attributes of its own")
        return self.of(noted, depth + 1)

    def _parts(self, kind: type, value: Any) -> tuple[str, Sequence[Any]]:
        if kind in (bytes, str):
            if kind is not str and len(value) < _LARGE:
                return f"${kind.__name__}", [base64.b64encode(value).decode()]
            data = value.encode("utf-8", "surrogatepass") if kind is str else value
            self.buffers.append(memoryview(data))
            return f"${kind.__name__}", []
        if kind in _PARTS:
            return f"${kind.__name__}", _PARTS[kind](value)
        if issubclass(kind, pathlib.PurePath) and kind.__name__ in PATHS:
            return "$path", [kind.__name__, str(value)]
        package = str(kind.__module__).partition(".")[0]
        if package == "numpy" and (kind is arrays.numpy.ndarray or issubclass(kind, arrays.numpy.generic)):
            return self._of_numpy(kind, value)
        if package == "torch" and kind is tensors.torch.Tensor:
            return self._of_torch(value)
        is_class = issubclass(kind, type)
        named = value if is_class else kind
        raise NotData(f"is {'the class' if is_class else 'a'} {named.__module__}.{named.__qualname__}")

    def _of_numpy(self, kind: type, value: Any) -> tuple[str, Sequence[Any]]:
        dtype = value.dtype.str
        if not DTYPE.fullmatch(dtype):
            raise NotData(f"is a numpy.{kind.__name__} of the dtype {str(value.dtype)[:60]}")
        if kind is not arrays.numpy.ndarray:
            # An empty text has a dtype of no bytes, but numpy gives some.
            return "$scalar", [dtype, base64.b64encode(value.tobytes()[: value.dtype.itemsize]).decode()]
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        has_bytes = value.size and value.itemsize
        self.buffers.append(memoryview(value.ravel(order).view("u1") if has_bytes else b""))
        return "$array", [dtype, list(value.shape), order]

    def _of_torch(self, value: Any) -> tuple[str, Sequence[Any]]:
        is_dense = str(value.layout) == "torch.strided" and not (value.is_quantized or value.is_nested)
        if not is_dense or value.device.type == "meta" or any(getattr(value, "names", ())) or vars(value):
            raise NotData("is a torch.Tensor that is not dense, or has names or attributes of its own")
        dense = value if value.is_contiguous() else value.contiguous()
        make, args, *_ = tensors.reduce(dense, pickler.note)
        memory, dtype, *facts = args
        if not TENSOR.fullmatch(dtype):
            raise NotData(f"is a torch.Tensor of {dtype}")
        self.buffers.append(memory.raw() if len(memoryview(memory)) else memoryview(b""))
        return "$tensor", [dtype, *([*fact] if type(fact) is tuple else fact for fact in facts)]
