"""What a value of a host that is not trusted may cost here: time and memory that grow with its bytes, and no faster.

A host that chooses the keys of a set or dict can make each one collide with all before it: 700 kB of integers then take
a minute, and 7 MB more than an hour, in one call of C that Ctrl-C does not end. Collisions are hard to see: keys with
different hashes can meet in the same places of a table. So the time is measured, and compared with that of reading the
keys. What is in several places is counted in each: six bytes can copy a megabyte. And one byte can make a set of 216.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.calls.data_types import DamagedPickle
from clusterfn.config import units

MEMORY_EVERY = 1 << 16  # bytes of the pickle between two looks at the free memory: they make up to 14 MB of objects
_SPARE = 8  # the part of the free memory that stays free
_DEEPEST_KEY = 50  # tuples in tuples: Python compares them without a look at its stack
_DEEPEST = 200  # deques in deques: Python 3.11 frees those without a look at its stack, and crashes
_DEEP = (collections.deque, collections.defaultdict)
_SHARED, _FREE = 100, 1_000_000  # times that a byte may be looked at or copied; and bytes that count for nothing
_LARGE_COPY, _ENTRY = 1 << 20, 100  # bytes; the second of an entry of a dict
_UNMEASURED = 1000  # comparisons that take less time than a look at the clock is worth
_KEYS_AT_ONCE = 1000  # between two looks at the clock, and at Ctrl-C
_COMPARED_AT_ONCE = 100_000_000  # parts of keys, about a second
_ALWAYS_S, _TIMES_AS_LONG = 0.5, 5.0  # filling takes a third of the time of reading where no keys collide


class ValueCost:
    """What one value has cost so far.

    Args:
        size: Its bytes.
    """

    def __init__(self, size: int) -> None:
        self._work = self._most_work = _FREE + _SHARED * size
        self._free: int | None = None
        self._copied = 0  # bytes since the last look at the free memory
        self._began = time.thread_time()  # not that of other programs: a busy machine rejects nothing
        self._filling_s = 0.0
        self._depths: dict[int, int] = {}  # of deques that hold others, by id
        self._held: dict[int, Any] = {}  # what others hold, by id: it must not be gone while its id is known

    def check_memory(self, more: int = 0) -> None:
        """Check that the machine has memory for what was made, and for so many more bytes.

        Raises:
            MemoryError: It soon would have none.
        """
        free = units.free_memory()
        if free is None:
            return
        self._free = self._free or free
        if free - more < self._free // _SPARE:
            raise MemoryError(f"its objects need more than the {format_size(self._free)} of free memory")

    def charge_copy(self, args: Iterable[Any]) -> None:
        """Count what is made from these arguments, which may be in many places.

        Raises:
            DamagedPickle: They are far more than the value has bytes.
            MemoryError: They do not fit into memory.
        """
        size = sum(map(_size, args))
        self._charge(size, "an argument")
        self._copied += size
        if self._copied > _LARGE_COPY:
            self._copied = 0
            self.check_memory(size)

    def charge_nesting(self, target: Any, items: Iterable[Any]) -> None:
        """Reject deques and defaultdicts that are nested too deeply.

        Raises:
            DamagedPickle: They are; or one is filled after another one holds it, so that its depth is not known.
        """
        if type(target) not in _DEEP:
            return
        for item in items:
            if type(item) in _DEEP:
                depth = self._depths.get(id(item), 0) + 1
                if depth > _DEEPEST or id(target) in self._held:
                    raise DamagedPickle(f"a {type(target).__name__} that is nested too deeply")
                self._depths[id(target)] = max(depth, self._depths.get(id(target), 0))
                self._held[id(item)] = item

    def fill(self, target: Any, keys: Sequence[Any], put: Callable[[int, int], object], read: int) -> None:
        """Put keys into a set or dict, some at a time.

        Args:
            target: The set or dict.
            keys: The keys.
            put: Puts the keys between two indices into it.
            read: Bytes of the value that were read so far: one key may be compared with all of them.

        Raises:
            DamagedPickle: A key is nested too deeply, or the keys collide.
        """
        before = self._work
        self._check_keys(keys)
        count, parts = len(keys), before - self._work
        if (len(target) + count) * (count + parts) <= _UNMEASURED:
            put(0, count)
            return
        step = min(_KEYS_AT_ONCE, max(1, _COMPARED_AT_ONCE // (read + self._most_work - self._work)))
        began = time.thread_time()
        for start in range(0, count, step):
            put(start, start + step)
            now = time.thread_time()
            self._filling_s, began = self._filling_s + now - began, now
            reading_s = now - self._began - self._filling_s
            if self._filling_s > _ALWAYS_S + _TIMES_AS_LONG * reading_s:
                raise DamagedPickle("the keys of a set or dict collide, and would take hours; return them as a list")

    def _check_keys(self, keys: Iterable[Any], depth: int = 0) -> None:
        """Reject keys that would take for ever to find: a tuple that has another one twice, and so on, doubles."""
        for key in keys:
            if type(key) is tuple or type(key) is frozenset:
                if depth >= _DEEPEST_KEY:
                    raise DamagedPickle("a key that is nested too deeply")
                self._charge(len(key), "a key")
                self._check_keys(key, depth + 1)

    def _charge(self, amount: int, what: str) -> None:
        self._work -= amount
        if self._work < 0:
            raise DamagedPickle(f"{what} that is in too many places")


def _size(argument: Any) -> int:
    """Return about how many bytes are copied, or steps taken, to make something from it."""
    if type(argument) is int:
        return argument.bit_length() ** 2 >> 12  # the divisor of two numbers takes quadratic time
    if type(argument) is memoryview:
        return argument.nbytes
    if type(argument) is dict:
        return _ENTRY * len(argument)
    return len(argument) if type(argument) in (str, bytes, bytearray) else 0
