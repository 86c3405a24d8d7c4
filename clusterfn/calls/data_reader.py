"""Read a pickle as plain data, for results="data": nothing that it names is imported or called, but `data_types`.

This is a reader of its own instead of an Unpickler with another `find_class`: that one sets attributes and calls
`__setstate__` of whatever the pickle has made, and reserves as much memory as the pickle claims. Here each opcode that
our pickler writes has a few lines, and all others are rejected by name.
"""

from __future__ import annotations

import collections
import pickle
import struct
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from clusterfn.calls import data_types
from clusterfn.calls.data_types import DamagedPickle as DamagedPickle
from clusterfn.calls.value_cost import MEMORY_EVERY, ValueCost

_FLOAT, _INT, _SHORT = struct.Struct(">d"), struct.Struct("<i"), struct.Struct("<H")
_MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
_SHOWN = 100


class NotData(Exception):
    """The pickle names what is no plain data.

    Attributes:
        name: It, as the pickle has it: a module and a name, or an opcode.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def load(data: bytes | memoryview, buffers: Iterable[Any] = ()) -> Any:
    """Load what a pickle of ours holds, if that is plain data.

    Args:
        data: The pickle.
        buffers: Its large buffers, in order.

    Raises:
        NotData: It names anything else; no part of that was made.
        DamagedPickle: Our pickler does not write such bytes, or their value costs far more than they do.
        MemoryError: It needs more memory than this machine has free.
        ModuleNotFoundError: numpy or torch is not installed here.
    """
    reader = _Reader(memoryview(data), list(buffers))
    try:
        value = reader.read()
    except (DamagedPickle, NotData, ImportError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - makers of the standard library, numpy and torch say in their own ways what is wrong
        raise DamagedPickle(f"{type(error).__name__}: {error}"[:_SHOWN]) from None
    names = reader.names
    del reader
    for each in names:
        if (left := each()) is not None:  # a class itself, as a value
            raise NotData(left.shown)
    return value


class _Name:
    """What the pickle has named, and can call: it never becomes a part of the value."""

    __slots__ = ("__weakref__", "key", "make")

    def __init__(self, key: tuple[str, str], make: Callable[..., Any] | None) -> None:
        self.key = key
        self.make = make

    @property
    def shown(self) -> str:
        return _shown(*self.key)


def _shown(module: str, name: str) -> str:
    return ascii(f"{module}.{name}")[1:-1][:_SHOWN]


class _Reader:
    """One pickle on its way to a value.

    Attributes:
        names: References to what it has named.
    """

    def __init__(self, data: memoryview, buffers: Sequence[Any]) -> None:
        self._data = data
        self._at = 0
        self._cost = ValueCost(len(data) + sum(memoryview(each).nbytes for each in buffers))
        self._buffers = iter(buffers)
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: list[Any] = []
        self.names: list[weakref.ref[_Name]] = []

    def read(self) -> Any:
        data, size = self._data, len(self._data)
        while self._at < size:
            until = min(size, self._at + MEMORY_EVERY)
            while self._at < until:
                code = data[self._at]
                if code == _STOP:
                    return self._end()
                take = _TAKES[code]
                if take is None:
                    raise NotData(self._unknown(code))
                self._at += 1
                take(self)
            self._cost.check_memory()
        raise DamagedPickle("the pickle has no end")

    def _end(self) -> Any:
        value = self._stack.pop()
        if self._stack or self._below or self._at + 1 != len(self._data):
            raise DamagedPickle("the pickle does not stop at its end")
        return value

    def _bytes(self, size: int) -> memoryview:
        """Return the next bytes; what a pickle claims is compared with what there is before any memory is taken."""
        end = self._at + size
        if end > len(self._data):
            raise DamagedPickle(f"the pickle claims {size} bytes, and has {len(self._data) - self._at}")
        found, self._at = self._data[self._at : end], end
        return found

    def _size(self, width: int) -> int:
        return int.from_bytes(self._bytes(width), "little")

    def _unknown(self, code: int) -> str:
        """Name an opcode, and what it names: those of old protocols are in text."""
        words = {value: name for name, value in vars(pickle).items() if name.isupper() and isinstance(value, bytes)}
        if bytes((code,)) in (pickle.GLOBAL, pickle.INST):
            text = bytes(self._data[self._at + 1 : self._at + 1 + _SHOWN]).split(b"\n")
            if len(text) > 2:
                return _shown(*(each.decode("ascii", "replace") for each in text[:2]))
        return f"an object made by the opcode {words.get(bytes((code,)), hex(code))}"

    # marks, the memo, and what the pickle has named

    def proto(self) -> None:
        if self._size(1) > 5:
            raise DamagedPickle("the pickle is of a protocol that is not known here")

    def frame(self) -> None:
        size = self._size(8)
        if size > len(self._data) - self._at:
            there = len(self._data) - self._at
            raise DamagedPickle(f"a frame of the pickle claims {size} bytes, and there are {there}")

    def mark(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _marked(self) -> list[Any]:
        found, self._stack = self._stack, self._below.pop()
        return found

    def pop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._marked()

    def pop_mark(self) -> None:
        self._marked()

    def memoize(self) -> None:
        self._memo.append(self._stack[-1])

    def get(self) -> None:
        self._stack.append(self._memo[self._size(1)])

    def long_get(self) -> None:
        self._stack.append(self._memo[self._size(4)])

    def name(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if type(name) is not str or type(module) is not str:
            raise DamagedPickle("a name that is no text")
        key = module, name
        if key in data_types.CONSTANTS:
            self._stack.append(data_types.CONSTANTS[key])
            return
        special = key in (data_types.UUID, data_types.GETATTR, data_types.ZONE) or key in data_types.FACTORIES
        make = data_types.MAKERS.get(key)
        if make is None and not special:
            by_value = self._class_by_value() if key == data_types.CLASS_BY_VALUE else ""
            raise NotData(by_value or data_types.DESCRIBED.get(key, "") + _shown(module, name))
        self._push_name(_Name(key, make))

    def _class_by_value(self) -> str:
        """Name a class of the user's own, which comes by value: its module and its name follow; "" if they do not."""
        self._stack.append(None)  # for the memo
        while self._at < len(self._data) and self._data[self._at] in _BEFORE_A_NAME:
            take = _TAKES[self._data[self._at]]
            self._at += 1
            if take is not None:
                take(self)
            if len(self._stack) > 1 and all(type(each) is str for each in self._stack):
                return _shown(*self._stack[:2])
        return ""

    def _push_name(self, named: _Name) -> None:
        self.names.append(weakref.ref(named))
        self._stack.append(named)

    def reduce(self) -> None:
        args, called = self._stack.pop(), self._stack.pop()
        if type(called) is not _Name or type(args) is not tuple:
            raise DamagedPickle("a call of what is no function")
        if called.key == data_types.GETATTR:
            self._method(args)
            return
        if called.make is None:
            raise NotData(called.shown)
        if called.key == ("collections", "defaultdict") and args and type(args[0]) is _Name:
            factory = data_types.FACTORIES.get(args[0].key)
            if factory is None:
                raise NotData(args[0].shown)
            args = factory, *args[1:]
        elif any(type(each) is _Name for each in args):
            raise NotData(next(each.shown for each in args if type(each) is _Name))
        self._cost.charge_copy(args)
        made = called.make(*args)
        if type(made) is collections.Counter:  # it copies no dict itself: that takes as long as filling the dict
            self._put(made, list(args[0]), list(args[0].values()))
        self._stack.append(made)

    def _method(self, args: tuple[Any, ...]) -> None:
        """Take getattr(ZoneInfo, "_unpickle"), and no other attribute of anything."""
        of = args[0] if args else None
        if type(of) is not _Name or of.key != data_types.ZONE or args[1:] != ("_unpickle",):
            raise NotData(f"builtins.getattr of {of.shown if type(of) is _Name else type(of).__name__}")
        self._push_name(_Name(data_types.ZONE, data_types.ZONE_MAKER))

    def new(self) -> None:
        args, called = self._stack.pop(), self._stack.pop()
        if type(called) is not _Name or called.key != data_types.UUID or args != ():
            raise NotData(called.shown if type(called) is _Name else "an object made by the opcode NEWOBJ")
        self._stack.append(data_types.empty_uuid())

    def build(self) -> None:
        state = self._stack.pop()
        data_types.fill(self._stack[-1], state)

    # what holds others

    def tuple_of(self) -> None:
        found = tuple(self._marked())
        self._stack.append(found)

    def tuple1(self) -> None:
        self._stack[-1:] = [(self._stack[-1],)]

    def tuple2(self) -> None:
        self._stack[-2:] = [(self._stack[-2], self._stack[-1])]

    def tuple3(self) -> None:
        self._stack[-3:] = [(self._stack[-3], self._stack[-2], self._stack[-1])]

    def append(self) -> None:
        self._extend([self._stack.pop()])

    def appends(self) -> None:
        self._extend(self._marked())

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) not in (list, collections.deque):
            raise DamagedPickle(f"items for a {type(target).__name__}")
        self._cost.charge_nesting(target, items)
        target.extend(items)

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._update([key, value])

    def set_items(self) -> None:
        self._update(self._marked())

    def _update(self, items: list[Any]) -> None:
        target, keys = self._stack[-1], items[::2]
        if type(target) not in _MAPPINGS or len(items) % 2:
            raise DamagedPickle(f"entries for a {type(target).__name__}")
        self._put(target, keys, items[1::2])

    def _put(self, target: Any, keys: list[Any], values: list[Any]) -> None:
        self._cost.charge_nesting(target, values)

        def put(start: int, end: int) -> None:
            for key, value in zip(keys[start:end], values[start:end]):
                target[key] = value

        self._cost.fill(target, keys, put, self._at)

    def add_items(self) -> None:
        self._add(self._marked(), self._stack[-1])

    def _add(self, items: list[Any], target: Any) -> None:
        if type(target) is not set:
            raise DamagedPickle(f"items for a {type(target).__name__}")
        self._cost.fill(target, items, lambda start, end: target.update(items[start:end]), self._at)

    def frozen_set(self) -> None:
        found: set[Any] = set()
        self._add(self._marked(), found)
        self._stack.append(frozenset(found))

    # plain values; those that often come in rows take the whole row

    def floats(self) -> None:
        data, at, push = self._data, self._at - 1, self._stack.append
        while data[at] == _BINFLOAT:
            push(_FLOAT.unpack_from(data, at + 1)[0])
            at += 9
        self._at = at

    def small(self) -> None:
        data, at, push = self._data, self._at - 1, self._stack.append
        while data[at] == _BININT1:
            push(data[at + 1])
            at += 2
        self._at = at

    def int2(self) -> None:
        self._stack.append(_SHORT.unpack_from(self._bytes(2))[0])

    def int4(self) -> None:
        self._stack.append(_INT.unpack_from(self._bytes(4))[0])

    def _long(self, width: int) -> None:
        self._stack.append(int.from_bytes(self._bytes(self._size(width)), "little", signed=True))

    def long1(self) -> None:
        self._long(1)

    def long4(self) -> None:
        self._long(4)

    def _text(self, width: int) -> None:
        self._stack.append(str(self._bytes(self._size(width)), "utf-8", "surrogatepass"))

    def text1(self) -> None:
        self._text(1)

    def text4(self) -> None:
        self._text(4)

    def text8(self) -> None:
        self._text(8)

    def _raw(self, width: int) -> None:
        self._stack.append(bytes(self._bytes(self._size(width))))

    def raw1(self) -> None:
        self._raw(1)

    def raw4(self) -> None:
        self._raw(4)

    def raw8(self) -> None:
        self._raw(8)

    def bytearray8(self) -> None:
        self._stack.append(bytearray(self._bytes(self._size(8))))

    def next_buffer(self) -> None:
        self._stack.append(next(self._buffers))

    def readonly_buffer(self) -> None:
        self._stack[-1] = memoryview(self._stack[-1]).toreadonly()


def _pushes(make: Callable[[], Any]) -> Callable[[_Reader], None]:
    return lambda reader: reader._stack.append(make())


_BEFORE_A_NAME = frozenset(
    code[0] for code in (pickle.MARK, pickle.MEMOIZE, pickle.BINGET, pickle.SHORT_BINUNICODE, pickle.BINUNICODE)
)
_STOP, _BINFLOAT, _BININT1 = pickle.STOP[0], pickle.BINFLOAT[0], pickle.BININT1[0]
_BY_CODE: dict[bytes, Callable[[_Reader], None]] = {
    pickle.PROTO: _Reader.proto, pickle.FRAME: _Reader.frame, pickle.MARK: _Reader.mark, pickle.POP: _Reader.pop,
    pickle.POP_MARK: _Reader.pop_mark, pickle.MEMOIZE: _Reader.memoize, pickle.BINGET: _Reader.get,
    pickle.LONG_BINGET: _Reader.long_get, pickle.STACK_GLOBAL: _Reader.name, pickle.REDUCE: _Reader.reduce,
    pickle.NEWOBJ: _Reader.new, pickle.BUILD: _Reader.build,
    pickle.TUPLE: _Reader.tuple_of, pickle.TUPLE1: _Reader.tuple1, pickle.TUPLE2: _Reader.tuple2,
    pickle.TUPLE3: _Reader.tuple3, pickle.APPEND: _Reader.append, pickle.APPENDS: _Reader.appends,
    pickle.SETITEM: _Reader.set_item, pickle.SETITEMS: _Reader.set_items, pickle.ADDITEMS: _Reader.add_items,
    pickle.FROZENSET: _Reader.frozen_set,
    pickle.BINFLOAT: _Reader.floats, pickle.BININT1: _Reader.small, pickle.BININT2: _Reader.int2,
    pickle.BININT: _Reader.int4, pickle.LONG1: _Reader.long1, pickle.LONG4: _Reader.long4,
    pickle.SHORT_BINUNICODE: _Reader.text1, pickle.BINUNICODE: _Reader.text4, pickle.BINUNICODE8: _Reader.text8,
    pickle.SHORT_BINBYTES: _Reader.raw1, pickle.BINBYTES: _Reader.raw4, pickle.BINBYTES8: _Reader.raw8,
    pickle.BYTEARRAY8: _Reader.bytearray8, pickle.NEXT_BUFFER: _Reader.next_buffer,
    pickle.READONLY_BUFFER: _Reader.readonly_buffer,
    pickle.NONE: _pushes(lambda: None), pickle.NEWTRUE: _pushes(lambda: True), pickle.NEWFALSE: _pushes(lambda: False),
    pickle.EMPTY_TUPLE: _pushes(tuple), pickle.EMPTY_LIST: _pushes(list), pickle.EMPTY_DICT: _pushes(dict),
    pickle.EMPTY_SET: _pushes(set),
}  # fmt: skip
_TAKES = [_BY_CODE.get(bytes((code,))) for code in range(256)]
