"""The items of a group: which have begun, how each has ended, and waiting for more of them."""

from __future__ import annotations

import concurrent.futures
import operator
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.job_states import DIED, PENDING, RUNNING
from clusterfn.hosts import spoken_wait

if TYPE_CHECKING:
    from clusterfn.errors import ClusterfnError

_TURN_S = 1.0


@dataclass(frozen=True)
class ItemOutcome:
    """How one item ended.

    Attributes:
        state: As `Job.state`.
        value: What it returned; None if it failed.
        error: Why it has no value; None if it has.
        usage: wall_s, cpu_s, peak_memory_bytes, gpus.
        kind: That of its outcome, such as "exited"; "" where the state says it.
    """

    state: str
    value: Any = None
    error: BaseException | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""

    @property
    def result(self) -> Any:
        """The value, or the exception in its place."""
        return self.value if self.error is None else self.error


class GroupItems:
    """The items of one group; `len` is their number.

    Args:
        group_id: The group's id.
        count: How many.
        labels: What a person calls each item.
        describe_wait: Says what is waited for.

    Attributes:
        given: The path of each file on the host that was an argument, and the path here from which it came.
        ended_at: When the last one ended, by the monotonic clock.
        lost: Why nothing more can be received of them.
    """

    def __init__(self, group_id: str, count: int, labels: Sequence[str], describe_wait: Callable[[], str]) -> None:
        self.id = group_id
        self.given: Mapping[str, PurePath] = {}
        self.labels = labels
        self.lost: ClusterfnError | None = None
        self._describe_wait = describe_wait
        self.ended_at: float | None = None
        self._states = [PENDING] * count
        self._ended: dict[int, ItemOutcome] = {}
        self._order: list[int] = []
        self._changed = threading.Condition()
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._states)

    def label(self, index: int) -> str:
        """Return the name of an item for people."""
        return self.labels[index] if self.labels else f"item {index}"

    def at(self, index: int) -> int:
        """Return the number of an item that a user may count from the end, as in a list.

        Raises:
            IndexError, TypeError: There is no such item.
        """
        try:
            return range(len(self))[operator.index(index)]
        except IndexError:
            count = len(self)
            few = ["no items", "one item, 0"]
            items = few[count] if count < len(few) else f"{count} items, 0 to {count - 1}"
            raise IndexError(f"there is no item {index}: the group has {items}") from None
        except TypeError:
            raise TypeError(f"{index!r} is not the index of an item: use a whole number") from None

    def done(self) -> bool:
        """Whether each item has ended."""
        return len(self._ended) == len(self)

    @property
    def states(self) -> list[str]:
        """Of each item, as `Job.state`."""
        return list(self._states)

    @property
    def running(self) -> int:
        """How many items run now."""
        return self._states.count(RUNNING)

    def ends(self) -> list[ItemOutcome]:
        """Return how those ended that have, in that order."""
        # The list is a copy, because another thread may add ends.
        return list(self._ended.values())

    def ended(self, index: int) -> ItemOutcome | None:
        """Return how one item ended; None if it has not."""
        return self._ended.get(index)

    @property
    def failed(self) -> dict[int, BaseException]:
        """Index -> exception, so far."""
        return {index: ended.error for index, ended in sorted(self._ended.items()) if ended.error is not None}

    def end_of(self, index: int, until: float | None) -> ItemOutcome:
        """Return how that item ended; wait for it until that moment of the monotonic clock.

        Raises:
            TimeoutError: It has not.
            ClusterfnError: Nothing more can be received of the group.
        """
        with self._changed:
            self._await(lambda: index in self._ended, until, f"item {index} has not ended")
        return self._ended[index]

    def give_away(self, index: int, until: float | None) -> Any:
        """Return the value of that item, waiting for it as `end_of`, and keep it no longer.

        Raises:
            BaseException: What the item raised.
        """
        ended = self.end_of(index, until)
        if ended.error is not None:
            raise ended.error
        with self._changed:
            self._ended[index] = replace(ended, value=None)
        return ended.value

    def ended_after(self, given: int, until: float | None) -> tuple[int, ItemOutcome]:
        """Return the item that ended after `given` others, waiting for it as `end_of`."""
        with self._changed:
            self._await(lambda: len(self._ended) > given, until, self._late(given))
            index = self._order[given]
            return index, self._ended[index]

    def _late(self, given: int) -> str:
        return f"{len(self) - given} of {len(self)} items have not ended"

    def _await(self, true: Callable[[], bool], until: float | None, late: str) -> None:
        """Wait until the condition holds; `_changed` must be held."""
        if os.getpid() != self._pid and not self.done():
            raise RuntimeError(f"group {self.id} was sent by another process; use clusterfn.attach({self.id!r})")

        def ends(seconds: float | None) -> bool:
            end = None if seconds is None else time.monotonic() + seconds
            while not true():
                if self.lost is not None:
                    raise self.lost
                left = _TURN_S if end is None else min(_TURN_S, end - time.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

        left_s = None if until is None else max(0.0, until - time.monotonic())
        if not spoken_wait.wait(ends, self._describe_wait, left_s):
            raise concurrent.futures.TimeoutError(late)

    def has_news(self, given: int) -> bool:
        """Whether more than so many items have ended, or nothing more will be received."""
        return len(self._ended) > given or self.lost is not None

    def begin_item(self, index: int) -> None:
        """Record that an item runs."""
        # Nothing waits for a beginning, and thousands would each wake the program's thread.
        with self._changed:
            if index not in self._ended:
                self._states[index] = RUNNING

    def end_item(self, index: int, ended: ItemOutcome) -> None:
        """Record how an item ended; ignore later reports about it."""
        with self._changed:
            if index not in self._ended:
                self._states[index] = ended.state
                self._ended[index] = ended
                self._order.append(index)
                self.ended_at = time.monotonic() if self.done() else None
                self._changed.notify_all()

    def end_rest(self, error: ClusterfnError) -> None:
        """Record this as the end of each item that has none: nothing is left that could run it."""
        for index in range(len(self)):
            self.end_item(index, ItemOutcome(DIED, None, error))

    def fail(self, error: ClusterfnError) -> None:
        """End it with this error: nothing more can come of it."""
        with self._changed:
            self.lost = self.lost or error
            self._changed.notify_all()
