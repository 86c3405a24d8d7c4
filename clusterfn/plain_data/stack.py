"""The stack on which a pickle makes a value, and the opcodes that put plain values and containers there.

What a pickle names and calls is in `reader`: nothing here imports or calls anything that a pickle names.
"""

from __future__ import annotations

import collections
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterfn.plain_data.allowed_types import DamagedPickle
from clusterfn.plain_data.cost import ValueCost

_FLOAT, _INT, _SHORT = struct.Struct(">d"), struct.Struct("<i"), struct.Struct("<H")
_MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
_BINFLOAT, _BININT1 = pickle.BINFLOAT[0], pickle.BININT1[0]


class DataStack:
    """The bytes of one pickle, and what was made of them so far.

    Attributes:
        data: The pickle.
        at: Where its next byte is.
        cost: What the value has cost so far.
        buffers: The large buffers that were not taken yet.
        stack: What was made above the last mark.
        below: What is below each mark.
        memo: What the pickle may take again.
    """

    def __init__(self, data: memoryview, buffers: Sequence[Any]) -> None:
        self.data = data
        self.at = 0
        self.cost = ValueCost(len(data) + sum(memoryview(each).nbytes for each in buffers))
        self.buffers = iter(buffers)
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: list[Any] = []

    def next_bytes(self, size: int) -> memoryview:
        """Return the next bytes; what a pickle claims is compared with what there is before any memory is taken."""
        end = self.at + size
        if end > len(self.data):
            raise DamagedPickle(f"the pickle claims {size} bytes, and has {len(self.data) - self.at}")
        taken, self.at = self.data[self.at : end], end
        return taken

    def number(self, width: int) -> int:
        """Return the number that the next bytes are."""
        return int.from_bytes(self.next_bytes(width), "little")

    def block(self, width: int) -> memoryview:
        """Return the bytes that follow their size, which has so many bytes itself."""
        return self.next_bytes(self.number(width))

    def marked(self) -> list[Any]:
        """Take what is above the last mark, and the mark."""
        level, self.stack = self.stack, self.below.pop()
        return level

    def put_entries(self, target: Any, keys: list[Any], values: list[Any]) -> None:
        """Put entries into a mapping, at a cost that is measured."""
        self.cost.charge_nesting(target, values)

        def put(start: int, end: int) -> None:
            for key, value in zip(keys[start:end], values[start:end]):
                target[key] = value

        self.cost.fill(target, keys, put, self.at)


# levels and the memo


def _proto(of: DataStack) -> None:
    if of.number(1) > 5:
        raise DamagedPickle("the pickle is of a protocol that is not known here")


def _frame(of: DataStack) -> None:
    size = of.number(8)
    if size > len(of.data) - of.at:
        raise DamagedPickle(f"a frame of the pickle claims {size} bytes, and there are {len(of.data) - of.at}")


def _open(of: DataStack) -> None:
    of.below.append(of.stack)
    of.stack = []


def _pop(of: DataStack) -> None:
    if of.stack:
        of.stack.pop()
    else:
        of.marked()


def _get(width: int) -> Callable[[DataStack], object]:
    return lambda of: of.stack.append(of.memo[of.number(width)])


# what holds others


def _tuple(of: DataStack) -> None:
    items = tuple(of.marked())
    of.stack.append(items)


def _tuple1(of: DataStack) -> None:
    of.stack[-1:] = [(of.stack[-1],)]


def _tuple2(of: DataStack) -> None:
    of.stack[-2:] = [(of.stack[-2], of.stack[-1])]


def _tuple3(of: DataStack) -> None:
    of.stack[-3:] = [(of.stack[-3], of.stack[-2], of.stack[-1])]


def _extend(of: DataStack, items: list[Any]) -> None:
    target = of.stack[-1]
    if type(target) not in (list, collections.deque):
        raise DamagedPickle(f"items for a {type(target).__name__}")
    of.cost.charge_nesting(target, items)
    target.extend(items)


def _set_item(of: DataStack) -> None:
    value, key = of.stack.pop(), of.stack.pop()
    _update(of, [key, value])


def _update(of: DataStack, items: list[Any]) -> None:
    target, keys = of.stack[-1], items[::2]
    if type(target) not in _MAPPINGS or len(items) % 2:
        raise DamagedPickle(f"entries for a {type(target).__name__}")
    of.put_entries(target, keys, items[1::2])


def _add(of: DataStack, items: list[Any], target: Any) -> None:
    if type(target) is not set:
        raise DamagedPickle(f"items for a {type(target).__name__}")
    of.cost.fill(target, items, lambda start, end: target.update(items[start:end]), of.at)


def _frozen_set(of: DataStack) -> None:
    items: set[Any] = set()
    _add(of, of.marked(), items)
    of.stack.append(frozenset(items))


# plain values; those that often come in rows take the whole row


def _floats(of: DataStack) -> None:
    data, at, push = of.data, of.at - 1, of.stack.append
    while data[at] == _BINFLOAT:
        push(_FLOAT.unpack_from(data, at + 1)[0])
        at += 9
    of.at = at


def _small(of: DataStack) -> None:
    data, at, push = of.data, of.at - 1, of.stack.append
    while data[at] == _BININT1:
        push(data[at + 1])
        at += 2
    of.at = at


def _integer(packed: struct.Struct) -> Callable[[DataStack], object]:
    return lambda of: of.stack.append(packed.unpack_from(of.next_bytes(packed.size))[0])


def _block(width: int, make: Callable[[memoryview], Any]) -> Callable[[DataStack], object]:
    return lambda of: of.stack.append(make(of.block(width)))


def _long(data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def _readonly_buffer(of: DataStack) -> None:
    of.stack[-1] = memoryview(of.stack[-1]).toreadonly()


def _made(make: Callable[[], Any]) -> Callable[[DataStack], object]:
    return lambda of: of.stack.append(make())


# The opcodes that clusterfn's pickler writes, apart from those that name or call anything. Any other opcode is damage.
PLAIN: Mapping[bytes, Callable[[DataStack], object]] = {
    pickle.PROTO: _proto, pickle.FRAME: _frame, pickle.MARK: _open, pickle.POP: _pop,
    pickle.POP_MARK: lambda of: of.marked(), pickle.MEMOIZE: lambda of: of.memo.append(of.stack[-1]),
    pickle.BINGET: _get(1), pickle.LONG_BINGET: _get(4),
    pickle.TUPLE: _tuple, pickle.TUPLE1: _tuple1, pickle.TUPLE2: _tuple2, pickle.TUPLE3: _tuple3,
    pickle.APPEND: lambda of: _extend(of, [of.stack.pop()]), pickle.APPENDS: lambda of: _extend(of, of.marked()),
    pickle.SETITEM: _set_item, pickle.SETITEMS: lambda of: _update(of, of.marked()),
    pickle.ADDITEMS: lambda of: _add(of, of.marked(), of.stack[-1]), pickle.FROZENSET: _frozen_set,
    pickle.BINFLOAT: _floats, pickle.BININT1: _small, pickle.BININT2: _integer(_SHORT), pickle.BININT: _integer(_INT),
    pickle.LONG1: _block(1, _long), pickle.LONG4: _block(4, _long),
    pickle.SHORT_BINUNICODE: _block(1, _text), pickle.BINUNICODE: _block(4, _text),
    pickle.BINUNICODE8: _block(8, _text), pickle.SHORT_BINBYTES: _block(1, bytes),
    pickle.BINBYTES: _block(4, bytes), pickle.BINBYTES8: _block(8, bytes),
    pickle.BYTEARRAY8: _block(8, bytearray), pickle.NEXT_BUFFER: lambda of: of.stack.append(next(of.buffers)),
    pickle.READONLY_BUFFER: _readonly_buffer,
    pickle.NONE: _made(lambda: None), pickle.NEWTRUE: _made(lambda: True), pickle.NEWFALSE: _made(lambda: False),
    pickle.EMPTY_TUPLE: _made(tuple), pickle.EMPTY_LIST: _made(list), pickle.EMPTY_DICT: _made(dict),
    pickle.EMPTY_SET: _made(set),
}  # fmt: skip
