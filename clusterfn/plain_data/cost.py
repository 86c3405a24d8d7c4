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
from clusterfn.config import units
from clusterfn.plain_data.allowed_types import DamagedPickle

# The free memory is checked after so many bytes of the pickle, which make up to 14 MB of objects.
MEMORY_EVERY = 1 << 16
# One part in so many of the free memory stays free.
_SPARE = 8
# Python compares tuples in tuples without a look at its stack, so deeper ones could crash it.
_DEEPEST_KEY = 50
# Python 3.11 frees deques in deques without a look at its stack, and crashes on deeper ones.
_DEEPEST = 200
_DEEP = (collections.deque, collections.defaultdict)
# Each byte may be looked at or copied so many times; the second number of bytes counts for nothing.
_SHARED, _FREE = 100, 1_000_000
# A copy of so many bytes is large; an entry of a dict takes the second number of bytes.
_LARGE_COPY, _ENTRY = 1 << 20, 100
# So few comparisons take less time than a look at the clock is worth.
_UNMEASURED = 1000
# The clock, and Ctrl-C, get a turn after so many keys.
_KEYS_AT_ONCE = 1000
# Comparing so many parts of keys takes about a second.
_COMPARED_AT_ONCE = 100_000_000
# Where no keys collide, filling takes a third of the time of reading. So these limits leave a wide margin.
_ALWAYS_S, _TIMES_AS_LONG = 0.5, 5.0


class ValueCost:
    """What one value has cost so far.

    Args:
        size: Its bytes.
    """

    def __init__(self, size: int) -> None:
        self._work = self._most_work = _FREE + _SHARED * size
        self._free: int | None = None
        # Bytes since the last look at the free memory.
        self._copied = 0
        # The time of this thread alone counts: other programs on a busy machine must not get a value rejected.
        self._began = time.thread_time()
        self._filling_s = 0.0
        # The depths of deques that hold others, by id.
        self._depths: dict[int, int] = {}
        # What others hold, by id. It is held here, so that no new object gets its id.
        self._held: dict[int, Any] = {}

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
        # The common divisor of two numbers takes quadratic time.
        return argument.bit_length() ** 2 >> 12
    if type(argument) is memoryview:
        return argument.nbytes
    if type(argument) is dict:
        return _ENTRY * len(argument)
    return len(argument) if type(argument) in (str, bytes, bytearray) else 0
