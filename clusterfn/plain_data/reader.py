"""Read a pickle as plain data, for results="data": nothing that it names is imported or called, but `allowed_types`.

This is a reader of its own instead of an Unpickler with another `find_class`: that one sets attributes and calls
`__setstate__` of whatever the pickle has made, and reserves as much memory as the pickle claims. Here each opcode that
our pickler writes has a few lines, and all others are rejected by name.
"""

from __future__ import annotations

import collections
import pickle
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clusterfn.plain_data import allowed_types, stack
from clusterfn.plain_data.allowed_types import DamagedPickle as DamagedPickle
from clusterfn.plain_data.cost import MEMORY_EVERY

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


class _Reader(stack.DataStack):
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
    **stack.PLAIN,
    pickle.STACK_GLOBAL: _Reader.name, pickle.REDUCE: _Reader.reduce, pickle.NEWOBJ: _Reader.new,
    pickle.BUILD: _Reader.build,
}  # fmt: skip
_TAKES = [_BY_CODE.get(bytes((code,))) for code in range(256)]
