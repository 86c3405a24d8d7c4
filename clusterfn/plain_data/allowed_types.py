"""What a value may be made of with results="data": each name that a pickle may call, and what is made for it here.

Every maker checks its arguments itself: they come from a host that is not trusted. No name leads to a class or a
function that a pickle could change, and none runs code of the user's.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import math
import os
import pathlib
import re
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from clusterfn.hosts import serialization

Maker = Callable[..., Any]

_DTYPE = re.compile(
    r"[<>|=]?(?:b1|[iu][1248]|f(?:2|4|8|12|16)|c(?:8|16|24|32)|[SU]\d{1,9}|[mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?)"
)
_TENSOR = re.compile(r"bool|u?int(?:8|16|32|64)|b?float16|float(?:32|64|8_e4m3fn|8_e5m2)|complex(?:32|64|128)")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,2}")
_BYTES = (bytes, bytearray, memoryview)
_POSIX = os.name == "posix"


class DamagedPickle(Exception):
    """The arguments of a maker, or the pickle itself, are not those that our pickler writes."""


def _need(true: bool, what: str) -> None:
    if not true:
        raise DamagedPickle(what)


# numpy and torch allow no more.
_MOST_AXES = 64
_LONGEST_PATH = 1 << 16
_LONGEST_FRACTION_BITS = 1 << 16


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_shape(value: Any) -> bool:
    return type(value) is tuple and len(value) <= _MOST_AXES and all(map(_is_count, value))


def _array(*args: Any) -> Any:
    """Rebuild an array of a plain dtype; the buffer must have exactly its bytes."""
    _need(len(args) == 4, "an array needs a buffer, a dtype, a shape and an order")
    buffer, dtype, shape, order = args
    _check_numpy(buffer, dtype)
    _need(_is_shape(shape) and order in ("C", "F"), "the shape of an array")
    size = _item_size(dtype) * math.prod(shape)
    _need(len(buffer) == size, f"an array of {size} bytes in a buffer of {len(buffer)}")
    return serialization.part("arrays").array(buffer, dtype, shape, order)


def _scalar(*args: Any) -> Any:
    """Rebuild a scalar of a plain dtype."""
    _need(len(args) == 2, "a scalar of numpy needs bytes and a dtype")
    data, dtype = args
    _check_numpy(data, dtype)
    _need(len(data) == _item_size(dtype) > 0, "the bytes of a scalar of numpy")
    return serialization.part("arrays").scalar(data, dtype)


def _check_numpy(buffer: Any, dtype: Any) -> None:
    _need(type(buffer) in _BYTES, "the buffer of an array")
    _need(type(dtype) is str and _DTYPE.fullmatch(dtype) is not None, f"the dtype {ascii(dtype)[:40]}")


def _item_size(dtype: str) -> int:
    import numpy

    return int(numpy.dtype(dtype).itemsize)


def _tensor(*args: Any) -> Any:
    """Rebuild a dense tensor of torch."""
    _need(len(args) == 5, "a tensor needs a buffer, a dtype, a shape, an order and requires_grad")
    buffer, dtype, shape, order, requires_grad = args
    _need(type(buffer) in _BYTES and type(requires_grad) is bool, "the parts of a tensor")
    _need(type(dtype) is str and _TENSOR.fullmatch(dtype) is not None, "the dtype of a tensor")
    _need(_is_shape(shape), "the shape of a tensor")
    _need(type(order) is tuple and all(map(_is_count, order)), "the order of a tensor")
    _need(sorted(order) == list(range(len(shape))), "the order of a tensor")
    import torch

    size = torch.empty(0, dtype=getattr(torch, dtype)).element_size() * math.prod(shape)
    _need(len(buffer) == size, f"a tensor of {size} bytes in a buffer of {len(buffer)}")
    return serialization.part("tensors").tensor(buffer, dtype, shape, order, requires_grad)


def _view(part: str, package: str, kind: str) -> Maker:
    """Return the maker of an array or tensor over the memory of another one; no element may lie outside of that."""

    def make(*args: Any) -> Any:
        _need(len(args) in (4, 5), f"a {kind} needs a memory, a shape, steps and a flag")
        (memory, shape, steps), start, is_set = args[:3], 0 if len(args) == 4 else args[3], args[-1]
        _need(type(memory) is getattr(sys.modules.get(package), kind, None), f"the memory of a {kind}")
        _need(_is_shape(shape) and type(steps) is tuple and len(steps) == len(shape), f"the shape of a {kind}")
        _need(all(type(step) is int for step in (start, *steps)) and type(is_set) is bool, f"the steps of a {kind}")
        reach = [max(count - 1, 0) * step for count, step in zip(shape, steps)]
        first, last = (start + sum(bound(step, 0) for step in reach) for bound in (min, max))
        # One that is itself a view has more elements than there is memory.
        is_whole = memory.is_contiguous() if kind == "Tensor" else memory.flags.c_contiguous
        within = len(memory.shape) == 1 and 0 <= first <= last < len(memory)
        _need(is_whole and within, f"the bounds of a {kind}")
        return serialization.part(part).view(*args)

    return make


def _path(kind: type[pathlib.PurePath]) -> Maker:
    def make(*parts: Any) -> pathlib.PurePath:
        _need(all(type(part) is str for part in parts), "the parts of a path")
        _need(sum(map(len, parts)) <= _LONGEST_PATH, "a path of a usual length")
        return kind(*parts)

    return make


def _numbers(make: Maker, *kinds: type) -> Maker:
    """Return a maker whose arguments are all of these kinds."""

    def checked(*args: Any) -> Any:
        _need(all(type(each) in kinds for each in args), f"the arguments of {make.__name__}")
        return make(*args)

    return checked


def _fraction(*args: Any) -> Any:
    _need(all(type(each) is int for each in args), "the numbers of a Fraction")
    # Their common divisor takes a time that is quadratic in their length, and Ctrl-C waits for it.
    _need(sum(each.bit_length() for each in args) <= _LONGEST_FRACTION_BITS, "a Fraction of a usual length")
    return fractions.Fraction(*args)


def _counter(*args: Any) -> Any:
    _need(len(args) == 1 and type(args[0]) is dict, "the counts of a Counter")
    # The reader fills it, at a cost that is measured.
    return collections.Counter()


def _ordered(*args: Any) -> Any:
    _need(not args, "an OrderedDict gets its entries later")
    return collections.OrderedDict()


def _deque(*args: Any) -> Any:
    if not args:
        return collections.deque()
    _need(len(args) == 2 and type(args[0]) is tuple and not args[0] and _is_count(args[1]), "the size of a deque")
    return collections.deque((), args[1])


def _default(*args: Any) -> Any:
    _need(len(args) <= 1, "a defaultdict gets its entries later")
    return collections.defaultdict(*args)


def _zone(*args: Any) -> Any:
    _need(len(args) in (1, 2) and type(args[0]) is str and _ZONE.fullmatch(args[0]) is not None, "a time zone")
    import zoneinfo

    return zoneinfo.ZoneInfo(args[0])


def empty_uuid() -> uuid.UUID:
    """Return a UUID without its number, which comes as its state."""
    return uuid.UUID.__new__(uuid.UUID)


def fill(obj: Any, state: Any) -> None:
    """Give an object the state that comes after it: a UUID its number, an OrderedDict what torch notes on it."""
    if type(obj) is uuid.UUID:
        _need(type(state) is dict and set(state) <= {"int", "is_safe"} and type(state.get("int")) is int, "a UUID")
        _need(0 <= state["int"] < 1 << 128, "the number of a UUID")
        object.__setattr__(obj, "int", state["int"])
        object.__setattr__(obj, "is_safe", uuid.SafeUUID.unknown)
        return
    _need(type(obj) is collections.OrderedDict, f"the state of a {type(obj).__name__}")
    _need(type(state) is dict and set(state) == {"_metadata"}, "the attributes of an OrderedDict")
    vars(obj).update(state)


_OWN_PATH = _path(pathlib.PosixPath if _POSIX else pathlib.PurePosixPath)
_WINDOWS_PATH = _path(pathlib.PureWindowsPath if _POSIX else pathlib.WindowsPath)
_PATHS: Mapping[str, Maker] = {
    "PosixPath": _OWN_PATH,
    "WindowsPath": _WINDOWS_PATH,
    "PurePosixPath": _path(pathlib.PurePosixPath),
    "PureWindowsPath": _path(pathlib.PureWindowsPath),
}

# Jobs of earlier versions write this module's name.
_EARLIER = "_clusterfn_wire.pickler"
_OF_ARRAYS = ("_clusterfn_wire.arrays", _EARLIER)

# The keys are a module and a name, as a pickle writes them.
MAKERS: Mapping[tuple[str, str], Maker] = {
    ("builtins", "complex"): _numbers(complex, int, float),
    ("builtins", "range"): _numbers(range, int),
    ("builtins", "slice"): _numbers(slice, int, type(None)),
    ("datetime", "date"): _numbers(datetime.date, bytes, int),
    ("datetime", "time"): datetime.time,
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "timedelta"): _numbers(datetime.timedelta, int),
    ("datetime", "timezone"): _numbers(datetime.timezone, datetime.timedelta, str),
    ("decimal", "Decimal"): _numbers(decimal.Decimal, str),
    ("fractions", "Fraction"): _fraction,
    ("collections", "OrderedDict"): _ordered,
    ("collections", "Counter"): _counter,
    ("collections", "deque"): _deque,
    ("collections", "defaultdict"): _default,
    **{(module, name): make for module in _OF_ARRAYS for name, make in (("array", _array), ("scalar", _scalar))},
    ("_clusterfn_wire.arrays", "view"): _view("arrays", "numpy", "ndarray"),
    ("_clusterfn_wire.tensors", "tensor"): _tensor,
    ("_clusterfn_wire.tensors", "view"): _view("tensors", "torch", "Tensor"),
    **{(module, name): make for module in ("pathlib", "pathlib._local") for name, make in _PATHS.items()},
}
UUID = ("uuid", "UUID")
CLASS_BY_VALUE = (("_clusterfn_wire.classes", "remake_class"), (_EARLIER, "remake_class"))
# The names of what is rejected most often say little, so these words come before them in the message.
_CORE = "_clusterfn_wire.cloudpickle.cloudpickle"
DESCRIBED: Mapping[tuple[str, str], str] = {
    **{(module, "unfilled_array"): "an array of objects, " for module in _OF_ARRAYS},
    ("numpy", "dtype"): "an array of records, ",
    (_CORE, "_make_function"): "a function, ",
    (_CORE, "_builtin_type"): "a function, ",
    ("_clusterfn_wire.tensors", "set_attributes"): "a tensor with attributes, ",
}
# A time zone is the result of getattr(ZoneInfo, "_unpickle").
GETATTR, ZONE, ZONE_MAKER = ("builtins", "getattr"), ("zoneinfo", "ZoneInfo"), _zone
# A defaultdict makes its values with these classes. As values themselves they are not data.
FACTORIES: Mapping[tuple[str, str], type] = {
    ("builtins", kind.__name__): kind for kind in (int, float, bool, str, bytes, list, dict, set, tuple)
}
CONSTANTS: Mapping[tuple[str, str], Any] = {
    ("builtins", "Ellipsis"): Ellipsis,
    ("builtins", "NotImplemented"): NotImplemented,
}
