"""Values as plain data, for results="data": JSON with tags, and beside it the memory of arrays and of long texts.

A tag is a JSON object with one key that begins with `$`. Reading it makes what the table below has for the tag, of
parts that are checked, and imports or calls nothing that the text names. So a hostile host may have written it.
"""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import fractions
import json
import math
import os
import pathlib
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import arrays, pickler, tensors

# A text or bytes of so many go beside the JSON.
_LARGE = 1 << 12
# JSON has every number, but Python reads no more than 4300 digits of one.
_LARGE_NUMBER = 1 << 64
_DEEPEST = 100
# One byte of the JSON makes no more bytes of objects: 21 bytes can make an empty deque, which has 760.
_MEMORY = 40
_DTYPE = re.compile(
    r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SU]\d{1,9}|[mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?)"
)
_TENSOR = re.compile(r"bool|u?int(?:8|16|32|64)|b?float16|float(?:32|64|8_e4m3fn|8_e5m2)|complex(?:32|64|128)")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,2}")
_MOST_AXES = 64
# What takes a time that is quadratic in its length may not be longer.
_LONGEST_PATH, _LONGEST_FRACTION_BITS = 1 << 16, 1 << 16
# A path to a part of a value is shown so far.
_LONGEST_SHOWN = 150
# Filling so few keys takes a moment, whatever their hashes are.
_FEW_KEYS = 100
# Where no keys collide, reading a byte of JSON and filling its part of a set takes a tenth of this.
_ALWAYS_S, _BYTE_S = 0.5, 5e-7


class NotData(Exception):
    """A part of a value is no plain data; its text says which one."""

    path = ""

    def __str__(self) -> str:
        path = self.path if len(self.path) < _LONGEST_SHOWN else f"{self.path[:_LONGEST_SHOWN]}…"
        return f"result{path} {self.args[0]}"


# Writing


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """Return a value as JSON, and what goes beside it.

    Raises:
        NotData: It holds something else, or itself.
    """
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
            return {f"${kind.__name__}": [*entries, self._more(value, depth)]}
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

    def _more(self, value: Any, depth: int) -> Any:
        """Return what a dict knows beside its entries: what makes a missing one, or what torch notes on it."""
        if type(value) is collections.OrderedDict:
            if not vars(value).keys() <= _NOTED:
                raise NotData("is an OrderedDict with attributes of its own")
            return self.of(vars(value), depth + 1)
        factory = getattr(value, "default_factory", None)
        if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
            raise NotData(f"is a defaultdict that calls {_full_name(factory)}")
        return getattr(factory, "__name__", None)

    def _parts(self, kind: type, value: Any) -> tuple[str, Sequence[Any]]:
        if kind in (bytes, bytearray, str):
            if kind is not str and len(value) < _LARGE:
                return f"${kind.__name__}", [base64.b64encode(value).decode()]
            data = value.encode("utf-8", "surrogatepass") if kind is str else value
            self.buffers.append(memoryview(data))
            return f"${kind.__name__}", []
        if kind in _PARTS:
            return f"${kind.__name__}", _PARTS[kind](value)
        if issubclass(kind, pathlib.PurePath) and kind.__name__ in _PATHS:
            return "$path", [kind.__name__, str(value)]
        package = str(kind.__module__).partition(".")[0]
        if package == "zoneinfo" and value.key:
            return "$ZoneInfo", [value.key]
        if package == "numpy" and (kind is arrays.numpy.ndarray or issubclass(kind, arrays.numpy.generic)):
            return self._of_numpy(kind, value)
        if package == "torch" and kind is tensors.torch.Tensor:
            return self._of_torch(value)
        raise NotData(f"is {'the class' if issubclass(kind, type) else 'a'} {_full_name(value)}")

    def _of_numpy(self, kind: type, value: Any) -> tuple[str, Sequence[Any]]:
        dtype = value.dtype.str
        if not _DTYPE.fullmatch(dtype):
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
        if not _TENSOR.fullmatch(dtype):
            raise NotData(f"is a torch.Tensor of {dtype}")
        self.buffers.append(memory.raw() if len(memoryview(memory)) else memoryview(b""))
        return "$tensor", [dtype, *([*fact] if type(fact) is tuple else fact for fact in facts)]


def _full_name(value: Any) -> str:
    kind: Any = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


# Reading


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


def _bytes(kind: type) -> Callable[[_Reader, list[Any]], Any]:
    def make(reader: _Reader, parts: list[Any]) -> Any:
        if not parts:
            return kind(reader.data(parts))
        _need(len(parts) == 1 and type(parts[0]) is str, "bytes")
        return kind(base64.b64decode(parts[0], validate=True))

    return make


def _of(make: Callable[..., Any], *kinds: type) -> Callable[[_Reader, list[Any]], Any]:
    """Return what makes an object of parts that are of these kinds."""

    def checked(_: _Reader, parts: list[Any]) -> Any:
        _need(all(type(part) in kinds for part in parts), f"the parts of a {make.__name__.strip('_')}")
        return make(*parts)

    return checked


def _moment(make: Callable[..., Any]) -> Callable[[_Reader, list[Any]], Any]:
    return lambda _, parts: make(*parts[:-1], fold=parts[-1])


def _fraction(numerator: int, denominator: int) -> fractions.Fraction:
    bits = numerator.bit_length() + denominator.bit_length()
    _need(bits <= _LONGEST_FRACTION_BITS, "a Fraction of a usual length")
    return fractions.Fraction(numerator, denominator)


def _uuid(number: int) -> uuid.UUID:
    return uuid.UUID(int=number)


def _path(kind: str, text: str) -> pathlib.PurePath:
    _need(len(text) <= _LONGEST_PATH, "a path of a usual length")
    return _PATHS[kind](text)


def _zone(name: str) -> Any:
    import zoneinfo

    _need(_ZONE.fullmatch(name), "a time zone")
    return zoneinfo.ZoneInfo(name)


def _deque(_: _Reader, parts: list[Any]) -> Any:
    longest, items = parts
    _need(type(items) is list and (longest is None or _is_count(longest)), "a deque")
    return collections.deque(items, longest)


def _mapping(make: Callable[[dict[Any, Any], Any], Any]) -> Callable[[_Reader, list[Any]], Any]:
    def made(reader: _Reader, parts: list[Any]) -> Any:
        keys, values, more = parts
        return make(reader.fill({}, keys, values), more)

    return made


def _ordered(entries: dict[Any, Any], noted: Any) -> Any:
    _need(type(noted) is dict and noted.keys() <= _NOTED, "the attributes of an OrderedDict")
    ordered = collections.OrderedDict(entries)
    vars(ordered).update(noted)
    return ordered


def _default(entries: dict[Any, Any], factory: Any) -> Any:
    return collections.defaultdict(None if factory is None else _FACTORIES[factory], entries)


def _check_shape(shape: Any, dtype: Any, known: re.Pattern[str]) -> None:
    _need(type(shape) is list and len(shape) <= _MOST_AXES and all(map(_is_count, shape)), "the shape of an array")
    _need(type(dtype) is str and known.fullmatch(dtype), "the dtype of an array")


def _array(reader: _Reader, parts: list[Any]) -> Any:
    dtype, shape, order = parts
    _check_shape(shape, dtype, _DTYPE)
    _need(order in ("C", "F"), "the order of an array")
    data = reader.data(parts, arrays.numpy.dtype(dtype).itemsize * math.prod(shape))
    return arrays.numpy.empty(shape, dtype, order) if 0 in shape else arrays.array(data, dtype, shape, order)


def _scalar(_: _Reader, parts: list[Any]) -> Any:
    dtype, text = parts
    _check_shape([], dtype, _DTYPE)
    data, kind = base64.b64decode(text, validate=True), arrays.numpy.dtype(dtype)
    _need(len(data) == kind.itemsize, "the bytes of a scalar of numpy")
    return arrays.scalar(data, dtype) if data else kind.type()


def _tensor(reader: _Reader, parts: list[Any]) -> Any:
    dtype, shape, order, requires_grad = parts
    _check_shape(shape, dtype, _TENSOR)
    _need(type(order) is list and all(map(_is_count, order)), "the order of a tensor")
    _need(sorted(order) == list(range(len(shape))) and type(requires_grad) is bool, "the order of a tensor")
    size = tensors.torch.empty(0, dtype=getattr(tensors.torch, dtype)).element_size() * math.prod(shape)
    return tensors.tensor(reader.data(parts, size), dtype, shape, order, requires_grad)


# The types

_SEQUENCES = (tuple, set, frozenset)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
# torch notes this on what `state_dict()` returns.
_NOTED = {"_metadata"}
_FACTORIES: Mapping[str, type] = {kind.__name__: kind for kind in (int, float, bool, str, list, dict, set, tuple)}
_PATHS: Mapping[str, type[pathlib.PurePath]] = {
    "PosixPath": pathlib.Path if os.name == "posix" else pathlib.PurePosixPath,
    "WindowsPath": pathlib.PureWindowsPath if os.name == "posix" else pathlib.Path,
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}
_DAY = ("year", "month", "day")
_TIME = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")


def _attributes(*names: str) -> Callable[[Any], Sequence[Any]]:
    return lambda value: [getattr(value, name) for name in names]


# The tag of each type is its name, and the parts of its objects are these.
_PARTS: Mapping[type, Callable[[Any], Sequence[Any]]] = {
    complex: _attributes("real", "imag"),
    range: _attributes("start", "stop", "step"),
    slice: _attributes("start", "stop", "step"),
    collections.deque: lambda value: [value.maxlen, list(value)],
    datetime.timedelta: _attributes("days", "seconds", "microseconds"),
    datetime.date: _attributes(*_DAY),
    datetime.time: _attributes(*_TIME),
    datetime.datetime: _attributes(*_DAY, *_TIME),
    datetime.timezone: lambda value: value.__getinitargs__(),
    decimal.Decimal: lambda value: [str(value)],
    fractions.Fraction: _attributes("numerator", "denominator"),
    uuid.UUID: _attributes("int"),
}
_MAKERS: Mapping[str, Callable[[_Reader, list[Any]], Any]] = {
    "$int": _int,
    "$str": _text,
    "$bytes": _bytes(bytes),
    "$bytearray": _bytes(bytearray),
    "$tuple": lambda _, parts: tuple(parts),
    "$set": lambda reader, parts: reader.fill(set(), parts),
    "$frozenset": lambda reader, parts: frozenset(reader.fill(set(), parts)),
    "$dict": _mapping(lambda entries, _: entries),
    "$OrderedDict": _mapping(_ordered),
    "$defaultdict": _mapping(_default),
    "$Counter": _mapping(lambda entries, _: collections.Counter(entries)),
    "$complex": _of(complex, float),
    "$range": _of(range, int),
    "$slice": lambda _, parts: slice(*parts),
    "$deque": _deque,
    "$timedelta": _of(datetime.timedelta, int),
    "$date": _of(datetime.date, int),
    "$time": _moment(datetime.time),
    "$datetime": _moment(datetime.datetime),
    "$timezone": _of(datetime.timezone, datetime.timedelta, str),
    "$ZoneInfo": _of(_zone, str),
    "$Decimal": _of(decimal.Decimal, str),
    "$Fraction": _of(_fraction, int),
    "$UUID": _of(_uuid, int),
    "$path": _of(_path, str),
    "$array": _array,
    "$scalar": _scalar,
    "$tensor": _tensor,
}
