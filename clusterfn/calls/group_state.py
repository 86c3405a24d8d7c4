"""The state of one group: what it waits for, which of its items have begun, how each has ended, and waiting for more.

Asks no host and prints nothing. `GroupRun` reports here what happens on the host; displays and sweeps read it, and what
a user sees of it is `group.JobGroup`.
"""

from __future__ import annotations

import collections
import concurrent.futures
import operator
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, DIED, NO_SILENCE, PENDING, RAISED, RETURNED, RUNNING, UNKNOWN
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls.queue_place import QueuePlace
from clusterfn.hosts import spoken_wait

if TYPE_CHECKING:
    from clusterfn.config.spec import Resources
    from clusterfn.errors import ClusterfnError
    from clusterfn.hosts.transfer import Transfer


@dataclass(frozen=True)
class ItemOutcome:
    """How one item ended.

    Attributes:
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


class GroupState:
    """One group; `len` is the number of its items.

    Attributes:
        id, name, host, folder: As those of `JobGroup`.
        labels: What a person calls each item.
        arguments: The plain arguments of each item by parameter; empty if its labels say more, as those of a sweep.
        given: The path of each file on the host that was an argument, and the path here from which it came.
        queue: Its place in the scheduler's queue; None if nothing of it was sent.
        end: Ends what runs, and keeps the rest from ever starting.
        on_error: What becomes of the exception of an item: "collect", "raise", or None if the call does not say.
        shown: How many ended items have been shown to the user.
        sent_here: Whether this process has sent it, and saw all of it.
        is_stopping: Whether its host was asked to end it.
        outputs_to: The folder on this machine in which each item gets a folder for the files of `outputs=`.
        ended_at: When the last item ended, by the monotonic clock.
        lost: Why nothing more can be received of it.
        own: Its items, but for those of a map on several hosts that other hosts have.
    """

    def __init__(self, group_id: str, name: str, host: str, folder: str, count: int) -> None:
        self.id, self.name, self.host, self.folder = group_id, name, host, folder
        self.submitted_at = time.monotonic()
        self.asked: Resources | None = None
        self.queue: QueuePlace | None = None
        self.end: Callable[[], None] = lambda: None
        self.on_interrupt, self.shown = "detach", 0
        self.on_error: str | None = None
        self.labels: Sequence[str] = ()
        self.sent_here, self.is_stopping, self.has_value = True, False, True
        self.outputs_to: Path | None = None
        self.transfer: Transfer | None = None
        self.arguments: Sequence[Mapping[str, Any]] = ()
        self.given: Mapping[str, PurePath] = {}
        self.ended_at: float | None = None
        self.lost: ClusterfnError | None = None
        self._reason, self._silence = "", NO_SILENCE
        self.own: Collection[int] = range(count)
        self._states = [PENDING] * count
        self._ended: dict[int, ItemOutcome] = {}
        self._order: list[int] = []
        self._changed = threading.Condition()
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._states)

    def done(self) -> bool:
        return len(self._ended) == len(self)

    @property
    def waits_here(self) -> bool:
        """Whether all of it waits in this program until its scheduler takes it."""
        return not self.done() and self.queue is not None and self.queue.waits_here

    @property
    def state(self) -> str:
        """Of all together, as `JobGroup.state`."""
        if not self.done():
            begun = RUNNING if any(state != PENDING for state in self._states) else PENDING
            return begun if self.lost is None else UNKNOWN
        return next((state for state in (CANCELLED, DIED, RAISED) if state in self._states), RETURNED)

    @property
    def reason(self) -> str:
        """Why it waits, or how far what it needs has been sent."""
        sending = self.transfer.in_words() if self.transfer is not None else ""
        silent_s = self._silence.lasts_s
        silence = f"no heartbeat from one of its supervisors for {silent_s:.0f} s" if silent_s else ""
        return sending or silence or self._reason or self.unanswered

    @property
    def unanswered(self) -> str:
        """Who has not taken it yet, if it was sent some seconds ago; "" otherwise."""
        if self.queue is None or any(state != PENDING for state in self._states):
            return ""
        return self.queue.unanswered(self.submitted_at)

    @property
    def is_silent(self) -> bool:
        """Whether no heartbeat comes from one of its processes."""
        return not self.done() and self._silence.lasts_s > 0

    @property
    def status(self) -> str:
        """State and counts in one line."""
        known = collections.Counter(ended.kind or ended.state.lower() for ended in self.ends())
        order = sorted(known, key=lambda kind: (kind != layout.RETURNED, kind))
        counts = ", ".join(f"{known[kind]} {kind}" for kind in order)
        progress = f"{sum(known.values())} of {len(self.own)} ended{f': {counts}' if counts else ''}"
        return f"{self.state} ({'; '.join(filter(None, [progress, '' if self.done() else self.reason]))})"

    # Its items have come into their states at different times.
    status_since = status

    def stop(self) -> None:
        if not self.done():
            self.end()
            self.is_stopping = True

    def note_silence(self) -> None:
        self._silence = self._silence.noticed()

    def set_reason(self, reason: str) -> None:
        """Record what the group waits for, what is done for it, or why nothing is received from its host."""
        self._reason = in_one_line(reason)

    def show_transfer(self, transfer: Transfer) -> None:
        self.transfer = transfer

    def with_items_again(self, indices: Sequence[int], group_id: str, folder: str) -> GroupState:
        """Return the state of this group when these items are sent again under that id; the others keep their ends."""
        made = GroupState(group_id, self.name, self.host, folder, len(self))
        made.on_error, made.labels, made.given = self.on_error, self.labels, self.given
        made.on_interrupt, made.has_value = self.on_interrupt, self.has_value
        made.outputs_to, made.asked, made.arguments = self.outputs_to, self.asked, self.arguments
        again = set(indices)
        for given in range(len(self)):
            index, ended = self.ended_after(given, None)
            if index not in again:
                made.end_item(index, ended)
        made.shown = len(self) - len(again)
        return made

    def label(self, index: int) -> str:
        return self.labels[index] if self.labels else f"item {index}"

    def at(self, index: int) -> int:
        """Return the number of an item that a user may count from the end, as in a list."""
        try:
            return range(len(self))[operator.index(index)]
        except IndexError:
            count = len(self)
            few = ["no items", "one item, 0"]
            items = few[count] if count < len(few) else f"{count} items, 0 to {count - 1}"
            raise IndexError(f"there is no item {index}: the group has {items}") from None
        except TypeError:
            raise TypeError(f"{index!r} is not the index of an item: use a whole number") from None

    @property
    def states(self) -> list[str]:
        """Of each item, as `Job.state`."""
        return list(self._states)

    def ends(self) -> list[ItemOutcome]:
        """Return how those ended that have, in that order."""
        # The list is a copy, because another thread may add ends.
        return [ended for index, ended in list(self._ended.items()) if index in self.own]

    def ended(self, index: int) -> ItemOutcome | None:
        return self._ended.get(index)

    @property
    def failed(self) -> dict[int, BaseException]:
        """Index -> exception, so far."""
        return {index: ended.error for index, ended in sorted(self._ended.items()) if ended.error is not None}

    def end_of(self, index: int, until: float | None) -> ItemOutcome:
        """Return how that item ended; wait for it until that moment of the monotonic clock."""
        self._await(lambda: index in self._ended, until, f"item {index} has not ended")
        return self._ended[index]

    def give_away(self, index: int, until: float | None) -> Any:
        """Return the value of that item or raise its exception, waiting for it as `end_of`, and keep it no longer."""
        ended = self.end_of(index, until)
        if ended.error is not None:
            raise ended.error
        with self._changed:
            self._ended[index] = replace(ended, value=None)
        return ended.value

    def ended_after(self, given: int, until: float | None) -> tuple[int, ItemOutcome]:
        """Return the item that ended after `given` others, waiting for it as `end_of`."""
        late = f"{len(self) - given} of {len(self)} items have not ended"
        self._await(lambda: len(self._order) > given, until, late)
        return self._order[given], self._ended[self._order[given]]

    def _await(self, has_come: Callable[[], bool], until: float | None, late: str) -> None:
        if os.getpid() != self._pid and not self.done():
            raise RuntimeError(f"group {self.id} was sent by another process; use clusterfn.attach({self.id!r})")

        def ends(seconds: float | None) -> bool:
            with self._changed:
                is_over = self._changed.wait_for(lambda: has_come() or self.lost is not None, seconds)
                if self.lost is not None and not has_come():
                    raise self.lost
            return is_over

        def describe() -> str:
            return f"{self.id} {self.name} on {self.host} is {self.status}; waiting for it"

        left_s = None if until is None else max(0.0, until - time.monotonic())
        if not spoken_wait.wait(ends, describe, left_s):
            raise concurrent.futures.TimeoutError(late)

    def has_news(self, given: int) -> bool:
        """Whether more than so many items have ended, or nothing more will be received."""
        return len(self._ended) > given or self.lost is not None

    def begin_item(self, index: int) -> None:
        # Nothing waits for a beginning, and thousands would each wake the program's thread.
        with self._changed:
            if index not in self._ended:
                self._states[index] = RUNNING

    def reopen(self, indices: Collection[int]) -> None:
        """Forget how these items ended: they are sent again."""
        again = set(indices)
        with self._changed:
            self._order = [index for index in self._order if index not in again]
            for index in again:
                self._states[index] = PENDING
                self._ended.pop(index, None)
            self.ended_at = self.lost = None

    def end_item(self, index: int, ended: ItemOutcome) -> None:
        """Record how an item ended; ignore later reports about it."""
        with self._changed:
            if index not in self._ended:
                self._states[index] = ended.state
                self._ended[index] = ended
                self._order.append(index)
                self.ended_at = time.monotonic() if self.done() else None
                self._changed.notify_all()

    def fail(self, error: ClusterfnError) -> None:
        """End it with this error: nothing more can come of it."""
        with self._changed:
            self.lost = self.lost or error
            self._changed.notify_all()
