"""Read plain data as `plain_data` writes it, or as a hostile host may write it.

A tag makes what the table below has for it, of parts that are checked. Nothing that the text names is imported or
called.
"""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import json
import math
import pathlib
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import arrays, tensors
from .plain_data import DTYPE, NOTED, PATHS, TENSOR

# One byte of the JSON makes no more bytes of objects: 21 bytes can make an empty deque, which has 760.
_MEMORY = 40
_MOST_AXES = 64
# Making a path takes a time that is quadratic in its length.
_LONGEST_PATH = 1 << 16
# Filling so few keys takes a moment, whatever their hashes are.
_FEW_KEYS = 100
# Where no keys collide, reading a byte of JSON and filling its part of a set takes a tenth of this.
_ALWAYS_S = 0.5
_BYTE_S = 5e-7


def loads(text: memoryview, buffers: Sequence[Any] = (), free: int | None = None) -> Any:
    """Return the value that `dumps` has written, or what a host claims to be one.

    Args:
        text: The JSON.
        buffers: What goes beside it.
        free: Bytes of memory that its objects may take; None if that is not known.

    Raises:
        ValueError: It is damaged.
        MemoryError: Its objects may need more memory than there is.
        ImportError: This Python lacks numpy or torch.
    """
    if free is not None and len(text) * _MEMORY > free:
        raise MemoryError(f"the objects of {len(text)} bytes may need more than the free memory")
    # A long number takes a time that is quadratic in its length; Python rejects it, if it has and keeps its limit.
    is_limited = getattr(sys, "get_int_max_str_digits", int)()
    reader = _Reader(buffers, len(text))
    try:
        value = json.loads(str(text, "ascii"), object_hook=reader.made, parse_int=None if is_limited else _number)
        _need(not reader.buffers, "what is beside the JSON")
    except (TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {str(error)[:200]}") from None
    return value


def _need(true: Any, what: str) -> None:
    if not true:
        raise ValueError(f"it has another form: {what}")


def _number(digits: str) -> int:
    _need(len(digits) < 100, "a number of so many digits")
    return int(digits)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


class _Reader:
    def __init__(self, buffers: Sequence[Any], size: int) -> None:
        self.buffers = list(reversed(buffers))
        self._most_s = _ALWAYS_S + _BYTE_S * size
        # The clock, and Ctrl-C, get a turn after so many keys: comparing 100 MB of keys takes about a second.
        self._step = max(1, min(1000, 100_000_000 // max(size, 1)))

    def made(self, found: dict[str, Any]) -> Any:
        """Return what a JSON object means; its parts have been made before."""
        tag = next(iter(found), "")
        if tag[:1] != "$":
            return found
        parts = found[tag]
        _need(len(found) == 1 and tag in _MAKERS and type(parts) is list, "an unknown tag")
        return _MAKERS[tag](self, parts)

    def fill(self, target: Any, keys: Any, values: Any = None) -> Any:
        """Fill a set or dict. Keys can be chosen so that each collides with all others: the time is measured.

        Keys of different hashes can collide too, so nothing else shows it. The time of this thread alone counts.
        """
        _need(type(keys) is list and (values is None or type(values) is list and len(values) == len(keys)), "its keys")
        if len(keys) <= _FEW_KEYS:
            target.update(keys if values is None else zip(keys, values))
            return target
        began = time.thread_time()
        for at in range(0, len(keys), self._step):
            some = slice(at, at + self._step)
            target.update(keys[some] if values is None else zip(keys[some], values[some]))
            if time.thread_time() - began > self._most_s:
                raise ValueError("the keys of a set or dict collide")
        self._most_s -= time.thread_time() - began
        return target

    def data(self, parts: list[Any], size: int | None = None) -> Any:
        """Return the next bytes that are beside the JSON."""
        data = self.buffers.pop()
        _need(size is None or len(data) == size, f"{size} bytes in a buffer of {len(data)}")
        return data


def _int(_: _Reader, parts: list[Any]) -> int:
    (text,) = parts
    _need(type(text) is str, "a number")
    return int(text, 16)


def _text(reader: _Reader, parts: list[Any]) -> str:
    _need(not parts, "a text")
    return str(reader.data(parts), "utf-8", "surrogatepass")


def _bytes(reader: _Reader, parts: list[Any]) -> bytes:
    if not parts:
        return bytes(reader.data(parts))
    _need(len(parts) == 1 and type(parts[0]) is str, "bytes")
    return base64.b64decode(parts[0], validate=True)


def _of(make: Callable[..., Any], *kinds: type) -> Callable[[_Reader, list[Any]], Any]:
    """Return what makes an object of parts that are of these kinds."""

    def checked(_: _Reader, parts: list[Any]) -> Any:
        _need(all(type(part) in kinds for part in parts), f"the parts of a {make.__name__.strip('_')}")
        return make(*parts)

    return checked


def _path(kind: str, text: str) -> pathlib.PurePath:
    _need(len(text) <= _LONGEST_PATH, "a path of a usual length")
    return PATHS[kind](text)


def _mapping(make: Callable[[dict[Any, Any]], Any]) -> Callable[[_Reader, list[Any]], Any]:
    def made(reader: _Reader, parts: list[Any]) -> Any:
        keys, values, noted = parts
        _need(type(noted) is dict and noted.keys() <= NOTED, "the attributes of a dict")
        mapping = make(reader.fill({}, keys, values))
        if noted:
            vars(mapping).update(noted)
        return mapping

    return made


def _check_shape(shape: Any, dtype: Any, known: re.Pattern[str]) -> None:
    _need(type(shape) is list and len(shape) <= _MOST_AXES and all(map(_is_count, shape)), "the shape of an array")
    _need(type(dtype) is str and known.fullmatch(dtype), "the dtype of an array")


def _array(reader: _Reader, parts: list[Any]) -> Any:
    dtype, shape, order = parts
    _check_shape(shape, dtype, DTYPE)
    _need(order in ("C", "F"), "the order of an array")
    data = reader.data(parts, arrays.numpy.dtype(dtype).itemsize * math.prod(shape))
    return arrays.numpy.empty(shape, dtype, order) if 0 in shape else arrays.array(data, dtype, shape, order)


def _scalar(_: _Reader, parts: list[Any]) -> Any:
    dtype, text = parts
    _check_shape([], dtype, DTYPE)
    data = base64.b64decode(text, validate=True)
    kind = arrays.numpy.dtype(dtype)
    _need(len(data) == kind.itemsize, "the bytes of a scalar of numpy")
    return arrays.scalar(data, dtype) if data else kind.type()


def _tensor(reader: _Reader, parts: list[Any]) -> Any:
    dtype, shape, order, requires_grad = parts
    _check_shape(shape, dtype, TENSOR)
    _need(type(order) is list and all(map(_is_count, order)), "the order of a tensor")
    _need(sorted(order) == list(range(len(shape))) and type(requires_grad) is bool, "the order of a tensor")
    size = tensors.torch.empty(0, dtype=getattr(tensors.torch, dtype)).element_size() * math.prod(shape)
    return tensors.tensor(reader.data(parts, size), dtype, shape, order, requires_grad)


_MAKERS: Mapping[str, Callable[[_Reader, list[Any]], Any]] = {
    "$int": _int,
    "$str": _text,
    "$bytes": _bytes,
    "$tuple": lambda _, parts: tuple(parts),
    "$set": lambda reader, parts: reader.fill(set(), parts),
    "$frozenset": lambda reader, parts: frozenset(reader.fill(set(), parts)),
    "$dict": _mapping(dict),
    "$OrderedDict": _mapping(collections.OrderedDict),
    "$Counter": _mapping(collections.Counter),
    "$complex": _of(complex, float),
    "$timedelta": _of(datetime.timedelta, int),
    "$date": _of(datetime.date, int),
    "$datetime": lambda _, parts: datetime.datetime(*parts[:-1], fold=parts[-1]),
    "$timezone": _of(datetime.timezone, datetime.timedelta, str),
    "$Decimal": _of(decimal.Decimal, str),
    "$path": _of(_path, str),
    "$array": _array,
    "$scalar": _scalar,
    "$tensor": _tensor,
}
