"""A value on its way here. Knows what its outcome announces, and what may come before that. Asks no host."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping
from typing import Any

from clusterfn.bridge.supervisor.text import format_size
from clusterfn.calls import outcome
from clusterfn.calls.outcome import JobLocation
from clusterfn.config import units
from clusterfn.errors import ResultError

RECEIVING = "receiving its value:"
# Any machine has room for this many bytes.
_SMALL = 1 << 20


class Arriving:
    """As many bytes as the outcome announces, and no more than this machine has room for.

    Attributes:
        published: The outcome, once that has been read; {} before.
        value: What has come so far. Arrays that are loaded from it share its memory.
    """

    def __init__(self, place: JobLocation) -> None:
        self.published: Mapping[str, Any] = {}
        self.value = bytearray()
        self._place = place
        self._size = 0
        _arriving[id(self)] = self

    def take(self) -> bytearray:
        """Return what has come, and let go of it: a request that has ended may be kept with its job."""
        value, self.value, self._size = self.value, bytearray(), 0
        return value

    def announce(self, content: bytes) -> None:
        """Take outcome.json, which comes before the value; raise ResultError for one too large for this machine."""
        # The same damage is reported when the outcome is taken.
        with contextlib.suppress(ValueError):
            self.expect(outcome.read(content))

    def expect(self, published: Mapping[str, Any]) -> None:
        """Take the outcome itself; raises as `announce`."""
        self.published = published
        size = (published.get("value") or {}).get("size") or 0
        free = units.free_memory(swap=True) if size > _SMALL else None
        if free is not None:
            # The system counts as free what other values that are on their way will take.
            free = max(0, free - _awaited())
            if size > free:
                has = f"this machine has {format_size(free)} of free memory"
                raise self._refused(f"the value is {format_size(size)}, and {has}")
        self._size = size

    @property
    def awaited(self) -> int:
        """How many bytes are still to come."""
        return max(0, self._size - len(self.value))

    def write(self, piece: bytes) -> None:
        """Take a further piece of the value; raise ResultError for more than was announced, or no room after all."""
        if not self._size:
            # Nothing of a value that has failed is read.
            return
        if len(piece) > self.awaited:
            raise self._refused(
                f"the value is damaged: more bytes arrived than the {self._size} that were written",
                f"check what else writes to {self._place.folder} on {self._place.host}",
            )
        try:
            self.value += piece
        except MemoryError as error:
            raise self._refused("this machine has no room for the value") from error

    def _refused(self, message: str, hint: str = "") -> ResultError:
        place = self._place
        hint = hint or (
            f"call clusterfn.attach({place.job!r}).result() on a machine with more memory, or write a file in the"
            " function and fetch it with outputs="
        )
        return ResultError(message, host=place.host, job=place.job, stage="result", hint=hint, log=place.folder)


_arriving: weakref.WeakValueDictionary[int, Arriving] = weakref.WeakValueDictionary()


def _awaited() -> int:
    """Return how many bytes are still to come to all values: each of ten would find all of the memory free."""
    # Iterate over a copy, because the reader thread of each host may add a value meanwhile.
    values = [reference() for reference in _arriving.valuerefs()]
    return sum(value.awaited for value in values if value is not None)
