"""Read a pickle as plain data, for results="data": nothing that it names is imported or called, but `allowed_types`.

This is a reader of its own instead of an Unpickler with another `find_class`: that one sets attributes and calls
`__setstate__` of whatever the pickle has made, and reserves as much memory as the pickle claims. Here each opcode that
our pickler writes has a few lines, and all others are rejected by name. Those that put plain values and containers on
the stack come first; those that name or call anything are methods of `_Reader`.
"""

from __future__ import annotations

import collections
import pickle
import struct
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clusterfn.plain_data import allowed_types
from clusterfn.plain_data.allowed_types import DamagedPickle as DamagedPickle
from clusterfn.plain_data.cost import MEMORY_EVERY, ValueCost

_SHOWN = 100
_FLOAT, _INT, _SHORT = struct.Struct(">d"), struct.Struct("<i"), struct.Struct("<H")
_MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
_BINFLOAT, _BININT1 = pickle.BINFLOAT[0], pickle.BININT1[0]


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
    except Exception as error:  # noqa: BLE001 - makers of numpy and torch may raise anything
        # For wrong arguments, each of these libraries raises its own errors.
        raise DamagedPickle(f"{type(error).__name__}: {error}"[:_SHOWN]) from None
    names = reader.names
    # The stack and the memo of the reader hold the names too, and must be gone before the check.
    del reader
    for each in names:
        # Something still refers to the name, so a class or function itself is a part of the value.
        if (left := each()) is not None:
            raise NotData(left.shown)
    return value


class _DataStack:
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


def _proto(of: _DataStack) -> None:
    if of.number(1) > 5:
        raise DamagedPickle("the pickle is of a protocol that is not known here")


def _frame(of: _DataStack) -> None:
    size = of.number(8)
    if size > len(of.data) - of.at:
        raise DamagedPickle(f"a frame of the pickle claims {size} bytes, and there are {len(of.data) - of.at}")


def _open(of: _DataStack) -> None:
    of.below.append(of.stack)
    of.stack = []


def _pop(of: _DataStack) -> None:
    if of.stack:
        of.stack.pop()
    else:
        of.marked()


def _get(width: int) -> Callable[[_DataStack], object]:
    return lambda of: of.stack.append(of.memo[of.number(width)])


# what holds others


def _tuple(of: _DataStack) -> None:
    items = tuple(of.marked())
    of.stack.append(items)


def _tuple1(of: _DataStack) -> None:
    of.stack[-1:] = [(of.stack[-1],)]


def _tuple2(of: _DataStack) -> None:
    of.stack[-2:] = [(of.stack[-2], of.stack[-1])]


def _tuple3(of: _DataStack) -> None:
    of.stack[-3:] = [(of.stack[-3], of.stack[-2], of.stack[-1])]


def _extend(of: _DataStack, items: list[Any]) -> None:
    target = of.stack[-1]
    if type(target) not in (list, collections.deque):
        raise DamagedPickle(f"items for a {type(target).__name__}")
    of.cost.charge_nesting(target, items)
    target.extend(items)


def _set_item(of: _DataStack) -> None:
    value, key = of.stack.pop(), of.stack.pop()
    _update(of, [key, value])


def _update(of: _DataStack, items: list[Any]) -> None:
    target, keys = of.stack[-1], items[::2]
    if type(target) not in _MAPPINGS or len(items) % 2:
        raise DamagedPickle(f"entries for a {type(target).__name__}")
    of.put_entries(target, keys, items[1::2])


def _add(of: _DataStack, items: list[Any], target: Any) -> None:
    if type(target) is not set:
        raise DamagedPickle(f"items for a {type(target).__name__}")
    of.cost.fill(target, items, lambda start, end: target.update(items[start:end]), of.at)


def _frozen_set(of: _DataStack) -> None:
    items: set[Any] = set()
    _add(of, of.marked(), items)
    of.stack.append(frozenset(items))


# plain values; those that often come in rows take the whole row


def _floats(of: _DataStack) -> None:
    data, at, push = of.data, of.at - 1, of.stack.append
    while data[at] == _BINFLOAT:
        push(_FLOAT.unpack_from(data, at + 1)[0])
        at += 9
    of.at = at


def _small(of: _DataStack) -> None:
    data, at, push = of.data, of.at - 1, of.stack.append
    while data[at] == _BININT1:
        push(data[at + 1])
        at += 2
    of.at = at


def _integer(packed: struct.Struct) -> Callable[[_DataStack], object]:
    return lambda of: of.stack.append(packed.unpack_from(of.next_bytes(packed.size))[0])


def _block(width: int, make: Callable[[memoryview], Any]) -> Callable[[_DataStack], object]:
    return lambda of: of.stack.append(make(of.block(width)))


def _long(data: memoryview) -> int:
    return int.from_bytes(data, "little", signed=True)


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def _readonly_buffer(of: _DataStack) -> None:
    of.stack[-1] = memoryview(of.stack[-1]).toreadonly()


def _made(make: Callable[[], Any]) -> Callable[[_DataStack], object]:
    return lambda of: of.stack.append(make())


# The opcodes that clusterfn's pickler writes, apart from those that name or call anything. Any other opcode is damage.
_PLAIN: Mapping[bytes, Callable[[_DataStack], object]] = {
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


class _Reader(_DataStack):
    """One pickle on its way to a value: what it names and calls.

    Attributes:
        names: References to what it has named.
    """

    def __init__(self, data: memoryview, buffers: Sequence[Any]) -> None:
        super().__init__(data, buffers)
        self.names: list[weakref.ref[_Name]] = []

    def read(self) -> Any:
        data, size = self.data, len(self.data)
        while self.at < size:
            until = min(size, self.at + MEMORY_EVERY)
            while self.at < until:
                code = data[self.at]
                if code == _STOP:
                    return self._end()
                take = _TAKES[code]
                if take is None:
                    raise NotData(self._unknown(code))
                self.at += 1
                take(self)
            self.cost.check_memory()
        raise DamagedPickle("the pickle has no end")

    def _end(self) -> Any:
        value = self.stack.pop()
        # Bytes after the end were never checked, so such a pickle is rejected.
        if self.stack or self.below or self.at + 1 != len(self.data):
            raise DamagedPickle("the pickle does not stop at its end")
        return value

    def _unknown(self, code: int) -> str:
        """Name an opcode, and what it names: those of old protocols are in text."""
        words = {value: name for name, value in vars(pickle).items() if name.isupper() and isinstance(value, bytes)}
        if bytes((code,)) in (pickle.GLOBAL, pickle.INST):
            text = bytes(self.data[self.at + 1 : self.at + 1 + _SHOWN]).split(b"\n")
            if len(text) > 2:
                return _shown(*(each.decode("ascii", "replace") for each in text[:2]))
        return f"an object made by the opcode {words.get(bytes((code,)), hex(code))}"

    def name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise DamagedPickle("a name that is no text")
        key = module, name
        if key in allowed_types.CONSTANTS:
            self.stack.append(allowed_types.CONSTANTS[key])
            return
        special = (
            key in (allowed_types.UUID, allowed_types.GETATTR, allowed_types.ZONE) or key in allowed_types.FACTORIES
        )
        make = allowed_types.MAKERS.get(key)
        if make is None and not special:
            by_value = self._class_by_value() if key in allowed_types.CLASS_BY_VALUE else ""
            raise NotData(by_value or allowed_types.DESCRIBED.get(key, "") + _shown(module, name))
        self._push_name(_Name(key, make))

    def _class_by_value(self) -> str:
        """Name a class of the user's own, which comes by value: its module and its name follow; "" if they do not."""
        # The opcodes that follow memoize the object, so the stack needs one.
        self.stack.append(None)
        while self.at < len(self.data) and self.data[self.at] in _BEFORE_A_NAME:
            take = _TAKES[self.data[self.at]]
            self.at += 1
            if take is not None:
                take(self)
            if len(self.stack) > 1 and all(type(each) is str for each in self.stack):
                return _shown(*self.stack[:2])
        return ""

    def _push_name(self, named: _Name) -> None:
        # The references are weak: after reading, only a name that is a part of the value is still alive.
        self.names.append(weakref.ref(named))
        self.stack.append(named)

    def reduce(self) -> None:
        args, called = self.stack.pop(), self.stack.pop()
        if type(called) is not _Name or type(args) is not tuple:
            raise DamagedPickle("a call of what is no function")
        if called.key == allowed_types.GETATTR:
            self._method(args)
            return
        if called.make is None:
            raise NotData(called.shown)
        if called.key == ("collections", "defaultdict") and args and type(args[0]) is _Name:
            factory = allowed_types.FACTORIES.get(args[0].key)
            if factory is None:
                raise NotData(args[0].shown)
            # This is the only place where a named object may become a part of a value: defaultdict calls it itself.
            args = factory, *args[1:]
        elif any(type(each) is _Name for each in args):
            # A class or function as an argument would let the maker call it.
            raise NotData(next(each.shown for each in args if type(each) is _Name))
        self.cost.charge_copy(args)
        result = called.make(*args)
        # A Counter that copies a dict takes as long as filling it, but without the limit on the cost.
        if type(result) is collections.Counter:
            self.put_entries(result, list(args[0]), list(args[0].values()))
        self.stack.append(result)

    def _method(self, args: tuple[Any, ...]) -> None:
        """Take getattr(ZoneInfo, "_unpickle"), and no other attribute of anything."""
        of = args[0] if args else None
        if type(of) is not _Name or of.key != allowed_types.ZONE or args[1:] != ("_unpickle",):
            raise NotData(f"builtins.getattr of {of.shown if type(of) is _Name else type(of).__name__}")
        self._push_name(_Name(allowed_types.ZONE, allowed_types.ZONE_MAKER))

    def new(self) -> None:
        args, called = self.stack.pop(), self.stack.pop()
        if type(called) is not _Name or called.key != allowed_types.UUID or args != ():
            raise NotData(called.shown if type(called) is _Name else "an object made by the opcode NEWOBJ")
        self.stack.append(allowed_types.empty_uuid())

    def build(self) -> None:
        state = self.stack.pop()
        allowed_types.fill(self.stack[-1], state)


_BEFORE_A_NAME = frozenset(
    code[0] for code in (pickle.MARK, pickle.MEMOIZE, pickle.BINGET, pickle.SHORT_BINUNICODE, pickle.BINUNICODE)
)
_STOP = pickle.STOP[0]
_BY_CODE: Mapping[bytes, Callable[[_Reader], object]] = {
    **_PLAIN,
    pickle.STACK_GLOBAL: _Reader.name, pickle.REDUCE: _Reader.reduce, pickle.NEWOBJ: _Reader.new,
    pickle.BUILD: _Reader.build,
}  # fmt: skip
_TAKES = [_BY_CODE.get(bytes((code,))) for code in range(256)]
