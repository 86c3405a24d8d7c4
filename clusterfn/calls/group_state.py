"""The state of the calls of one group: the state of each, how it ended, and waiting for changes of that.

Asks no host and prints nothing. Its `GroupBackend` reports here what happens on the host; displays and sweeps read it,
and what a user sees of it is `group.JobGroup`.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import operator
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, DIED, NO_SILENCE, PENDING, RAISED, RETURNED, RUNNING, UNKNOWN
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.hosts import spoken_wait

if TYPE_CHECKING:
    from clusterfn.config.job_spec import Group
    from clusterfn.config.spec import Resources
    from clusterfn.errors import ClusterfnError
    from clusterfn.hosts.connection import HostConnection, Reply
    from clusterfn.hosts.transfer import Transfer

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


class GroupBackend(Protocol):
    """What a group asks of whatever follows it on its host: a `GroupTracker`.

    Attributes:
        spec: How many items it has, and how they are shared out.
    """

    spec: Group

    @property
    def connection(self) -> HostConnection:
        """The connection to the group's host."""

    @property
    def waits_here(self) -> bool:
        """Whether all of it waits in this program until its scheduler takes it."""

    def open_requests(self) -> Sequence[Reply[Any]]:
        """Return the requests after which its folder is on the host, and its scheduler knows it."""

    def unanswered(self, since: float) -> str:
        """Say who has not taken it yet, if it was sent longer ago than a moment; "" otherwise."""

    def read_log(self, index: int, stream: str) -> str:
        """Read what an item has printed."""

    def fetch_value(self, index: int, most: int, timeout: float | None) -> Any:
        """Fetch the value of an item, of up to `most` bytes, that was too large to come by itself."""

    def element_folder(self, index: int) -> str:
        """Return the folder of the element that runs or ran the item."""

    def work_folder(self, index: int) -> str:
        """Return the folder in which the item runs or ran."""

    def checkpoint_folder(self, index: int) -> str:
        """Return the item's own folder in the checkpoint of its group."""

    def stop(self) -> None:
        """End what runs, and keep the rest from ever starting."""

    def withdraw(self) -> None:
        """Keep items from ever starting that no element has taken."""


class GroupState:
    """One group; `len` is the number of its items.

    Args:
        group_id, name, host, folder: As the attributes of `JobGroup`.
        count: How many items.
        on_error: "collect" or "raise".
        labels: What a person calls each item.

    Attributes:
        arguments: The plain arguments of each item by parameter; empty if its labels say more, as those of a sweep.
        backend: What follows it; None if nothing of it was sent.
        send_again: Sends the items of these indices as a new group; None if nothing of it was sent.
        on_interrupt: "detach" or "stop".
        raises: Whether the first failure is to be raised.
        shown: How many ended items have been shown to the user.
        ended_at: When the last item ended, by the monotonic clock, as `submitted_at`.
        asked: What each item asked for, if that is known.
        sent_here: Whether this process has sent it, and saw all of it.
        is_stopping: Whether its host was asked to end it.
        outputs_to: The folder on this machine in which each item gets a folder for the files of `outputs=`.
    """

    def __init__(
        self, group_id: str, name: str, host: str, folder: str, count: int, on_error: str = "collect",
        labels: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.id = group_id
        self.name = name
        self.host = host
        self.folder = folder
        self.submitted_at = time.monotonic()
        self.ended_at: float | None = None
        self.asked: Resources | None = None
        self.backend: GroupBackend | None = None
        self.send_again: Callable[[Sequence[int]], GroupState] | None = None
        self.on_interrupt = "detach"
        self.raises = on_error == "raise"
        self.shown = 0
        self.sent_here = True
        self.is_stopping = False
        self.outputs_to: Path | None = None
        self.transfer: Transfer | None = None
        self.given: Mapping[str, PurePath] = {}  # path of an argument there -> here
        self.arguments: Sequence[Mapping[str, Any]] = ()
        self._reason = ""
        self._silence = NO_SILENCE
        self._labels = labels
        self._states = [PENDING] * count
        self._ended: dict[int, ItemOutcome] = {}
        self._order: list[int] = []
        self._begun: dict[int, None] = {}  # in the order in which they began
        self._changed = threading.Condition()
        self.listeners: list[Callable[[], None]] = []
        self._lost: ClusterfnError | None = None
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._states)

    # what is known

    def at(self, index: int) -> int:
        """Return the number of an item that a user may count from the end, as in a list.

        Raises:
            IndexError, TypeError: There is no such item.
        """
        try:
            return range(len(self))[operator.index(index)]
        except IndexError:
            count = len(self)
            items = f"{count} items, 0 to {count - 1}" if count > 1 else "one item, 0" if count else "no items"
            raise IndexError(f"there is no item {index}: the group has {items}") from None
        except TypeError:
            raise TypeError(f"{index!r} is not the index of an item: use a whole number") from None

    def done(self) -> bool:
        """Whether each item has ended."""
        return len(self._ended) == len(self)

    @property
    def waits_here(self) -> bool:
        """Whether all of it waits in this program until its scheduler takes it."""
        return not self.done() and self.backend is not None and self.backend.waits_here

    @property
    def states(self) -> list[str]:
        """Of each item, as `Job.state`."""
        return list(self._states)

    @property
    def running(self) -> int:
        """How many items run now."""
        return self._states.count(RUNNING)

    @property
    def state(self) -> str:
        """Of all together, as `JobGroup.state`."""
        known = collections.Counter(self._states)
        if self._lost is not None and not self.done():
            return UNKNOWN
        if not self.done():
            return RUNNING if known[PENDING] < len(self) else PENDING
        if known[CANCELLED]:
            return CANCELLED
        return RETURNED if known[RETURNED] or not len(self) else RAISED if known[RAISED] else DIED

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
        if self.backend is None or self._begun or self.done():
            return ""
        return self.backend.unanswered(self.submitted_at)

    @property
    def is_silent(self) -> bool:
        """Whether no heartbeat comes from one of its processes."""
        return not self.done() and self._silence.lasts_s > 0

    @property
    def status(self) -> str:
        """State and counts in one line."""
        known = collections.Counter(each.kind or each.state.lower() for each in list(self._ended.values()))
        order = sorted(known, key=lambda kind: (kind != layout.RETURNED, kind))
        counts = ", ".join(f"{known[kind]} {kind}" for kind in order)
        progress = f"{sum(known.values())} of {len(self)} ended{f': {counts}' if counts else ''}"
        return f"{self.state} ({'; '.join(filter(None, [progress, '' if self.done() else self.reason]))})"

    @property
    def status_since(self) -> str:
        """The same: its items have come into their states at different times."""
        return self.status

    def ended(self, index: int) -> ItemOutcome | None:
        """Return how one item ended; None if it has not."""
        return self._ended.get(index)

    @property
    def failed(self) -> dict[int, BaseException]:
        """Index -> exception, so far."""
        return {index: each.error for index, each in sorted(self._ended.items()) if each.error is not None}

    def label(self, index: int) -> str:
        """Return the name of an item for people."""
        return self._labels[index] if self._labels else f"item {index}"

    def with_items_again(self, indices: Sequence[int], group_id: str, folder: str) -> GroupState:
        """Return the state of this group when these items are sent again under that id; the others keep their ends."""
        made = GroupState(group_id, self.name, self.host, folder, len(self), labels=self._labels)
        made.raises, made.on_interrupt, made.given = self.raises, self.on_interrupt, self.given
        made.outputs_to, made.asked, made.arguments = self.outputs_to, self.asked, self.arguments
        again = set(indices)
        for given in range(len(self)):
            index, ended = self.ended_after(given, None)
            if index not in again:
                made.on_end(index, ended)
        made.shown = len(self) - len(again)
        return made

    def stop(self) -> None:
        """End what has not ended."""
        if not self.done() and self.backend is not None:
            self.backend.stop()
            self.is_stopping = True

    # waiting for more

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

    def begun_after(self, given: int, until: float | None) -> int | None:
        """Return the item that began after `given` others, waiting as `end_of`; None if as many ended without."""
        with self._changed:
            self._await(lambda: len(self._begun) > given or len(self._ended) > given, until, self._late(given))
            return list(self._begun)[given] if len(self._begun) > given else None

    def _late(self, given: int) -> str:
        return f"{len(self) - given} of {len(self)} items have not ended"

    def _await(self, true: Callable[[], bool], until: float | None, late: str) -> None:
        """Wait until the condition holds; `_changed` must be held."""
        if os.getpid() != self._pid and not self.done():
            raise RuntimeError(f"group {self.id} was sent by another process; use clusterfn.attach({self.id!r})")

        def ends(seconds: float | None) -> bool:
            end = None if seconds is None else time.monotonic() + seconds
            while not true():
                if self._lost is not None:
                    raise self._lost
                left = _TURN_S if end is None else min(_TURN_S, end - time.monotonic())
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

        def describe() -> str:
            return f"{self.id} {self.name} on {self.host} is {self.status_since}; waiting for it"

        if not spoken_wait.wait(ends, describe, None if until is None else max(0.0, until - time.monotonic())):
            raise concurrent.futures.TimeoutError(late)

    def has_news(self, given: int) -> bool:
        """Whether more than so many items have ended, or nothing more will be received."""
        return len(self._ended) > given or self._lost is not None

    @contextlib.contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Have it called when an item ends, in the thread that reports that."""
        self.listeners.append(listener)
        try:
            yield
        finally:
            self.listeners.remove(listener)

    # what the backend reports

    def on_begin(self, index: int) -> None:
        """Record that an item runs."""
        if index not in self._ended:
            with self._changed:
                self._states[index] = RUNNING
                self._begun[index] = None
                self._changed.notify_all()

    def on_end(self, index: int, ended: ItemOutcome) -> None:
        """Record how an item ended; ignore later reports about it."""
        with self._changed:
            if index not in self._ended:
                self._states[index] = ended.state
                self._ended[index] = ended
                self._order.append(index)
                self.ended_at = time.monotonic() if self.done() else None
                self._changed.notify_all()
        self._notify()

    def on_fetched(self, index: int, value: Any) -> None:
        """Record the value of an item that was too large to come by itself."""
        with self._changed:
            self._ended[index] = replace(self._ended[index], value=value, error=None)

    def on_silent(self) -> None:
        """Take note that no heartbeat has come from one of its processes for `SILENT_AFTER_S`."""
        self._silence = self._silence.noticed()
        self._notify()

    def on_state(self, state: str, reason: str = "") -> None:
        """Record what the group waits for, or what is being done for it."""
        self._reason = in_one_line(reason)

    def on_connection(self, trouble: str) -> None:
        """Why nothing is received from its host; "" while it is connected."""
        self._reason = in_one_line(trouble)

    def on_transfer(self, transfer: Transfer) -> None:
        """Take the transfer of files that are being sent."""
        self.transfer = transfer

    def on_refused(self, error: ClusterfnError) -> None:
        """End it with this error: nothing more can come of it."""
        with self._changed:
            self._lost = self._lost or error
            self._changed.notify_all()
        self._notify()

    def _notify(self) -> None:
        for listener in list(self.listeners):
            listener()
