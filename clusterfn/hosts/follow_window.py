"""Which jobs of one host are followed: the oldest, and those that begin. Thousands that wait cost next to nothing.

Those that begin ahead of older ones take no place from these: what a look at the queue misses may not have begun.

Each job that is followed takes some hundred objects here, which Python's garbage collector walks through, and watches
of folders on the host. With twenty thousand jobs, one walk takes seconds, and no end is reported meanwhile.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")
MOST = 4000


class FollowWindow(Generic[T]):
    """The trackers of jobs that are followed in turn, and of those that wait, in their order; for any thread."""

    def __init__(self) -> None:
        self._in_turn: set[T] = set()
        self._waiting: OrderedDict[T, None] = OrderedDict()

    def enter(self, tracker: T) -> bool:
        """Return whether the job is followed from now on; else it waits for its turn."""
        if len(self._in_turn) < MOST and not self._waiting:
            self._in_turn.add(tracker)
            return True
        self._waiting[tracker] = None
        return False

    def hurry(self, tracker: T) -> bool:
        """Follow a waiting job ahead of older ones. Return False if it was not waiting."""
        with contextlib.suppress(KeyError):
            del self._waiting[tracker]
            return True
        return False

    def leave(self, tracker: T) -> list[T]:
        """Take note that the job has ended; return the jobs whose turn has come."""
        self._in_turn.discard(tracker)
        self._waiting.pop(tracker, None)
        begun: list[T] = []
        with contextlib.suppress(KeyError):
            # `popitem` raises KeyError once no job waits any more.
            while len(self._in_turn) < MOST:
                begun.append(self._waiting.popitem(last=False)[0])
                self._in_turn.add(begun[-1])
        return begun
