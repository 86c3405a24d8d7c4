"""The state of one group: what it waits for, and what is known of its items together.

Asks no host and prints nothing. `GroupRun` reports here what happens on the host; displays and sweeps read it, and what
a user sees of it is `group.JobGroup`.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, DIED, NO_SILENCE, PENDING, RAISED, RETURNED, RUNNING, UNKNOWN
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls.group_items import GroupItems
from clusterfn.calls.queue_place import QueuePlace

if TYPE_CHECKING:
    from clusterfn.config.spec import Resources
    from clusterfn.hosts.transfer import Transfer


class GroupState:
    """One group; `len` is the number of its items.

    Args:
        group_id, name, host, folder: As the attributes of `JobGroup`.
        count: How many items.
        on_error: As the attribute.
        labels: What a person calls each item.

    Attributes:
        items: Its items: which have begun, and how each has ended.
        arguments: The plain arguments of each item by parameter; empty if its labels say more, as those of a sweep.
        queue: Its place in the scheduler's queue; None if nothing of it was sent.
        end: Ends what runs, and keeps the rest from ever starting.
        on_interrupt: "detach" or "stop".
        on_error: What becomes of the exception of an item: "collect", "raise", or None if the call does not say.
        shown: How many ended items have been shown to the user.
        asked: What each item asked for, if that is known.
        sent_here: Whether this process has sent it, and saw all of it.
        is_stopping: Whether its host was asked to end it.
        has_value: Whether its items are called for their values.
        outputs_to: The folder on this machine in which each item gets a folder for the files of `outputs=`.
    """

    def __init__(
        self,
        group_id: str,
        name: str,
        host: str,
        folder: str,
        count: int,
        on_error: str | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        self.id, self.name, self.host, self.folder = group_id, name, host, folder
        self.items = GroupItems(group_id, count, labels, self.describe_wait)
        self.submitted_at = time.monotonic()
        self.asked: Resources | None = None
        self.queue: QueuePlace | None = None
        self.end: Callable[[], None] = lambda: None
        self.on_interrupt, self.on_error, self.shown = "detach", on_error, 0
        self.sent_here, self.is_stopping, self.has_value = True, False, True
        self.outputs_to: Path | None = None
        self.transfer: Transfer | None = None
        self.arguments: Sequence[Mapping[str, Any]] = ()
        self._reason, self._silence = "", NO_SILENCE

    def __len__(self) -> int:
        return len(self.items)

    def done(self) -> bool:
        """Whether each item has ended."""
        return self.items.done()

    @property
    def waits_here(self) -> bool:
        """Whether all of it waits in this program until its scheduler takes it."""
        return not self.done() and self.queue is not None and self.queue.waits_here

    @property
    def state(self) -> str:
        """Of all together, as `JobGroup.state`."""
        known = collections.Counter(self.items.states)
        if self.items.lost is not None and not self.done():
            return UNKNOWN
        if not self.done():
            return RUNNING if known[PENDING] < len(self) else PENDING
        return next((state for state in (CANCELLED, DIED, RAISED) if known[state]), RETURNED)

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
        if self.queue is None or any(state != PENDING for state in self.items.states):
            return ""
        return self.queue.unanswered(self.submitted_at)

    @property
    def is_silent(self) -> bool:
        """Whether no heartbeat comes from one of its processes."""
        return not self.done() and self._silence.lasts_s > 0

    @property
    def status(self) -> str:
        """State and counts in one line."""
        known = collections.Counter(ended.kind or ended.state.lower() for ended in self.items.ends())
        order = sorted(known, key=lambda kind: (kind != layout.RETURNED, kind))
        counts = ", ".join(f"{known[kind]} {kind}" for kind in order)
        progress = f"{sum(known.values())} of {len(self)} ended{f': {counts}' if counts else ''}"
        return f"{self.state} ({'; '.join(filter(None, [progress, '' if self.done() else self.reason]))})"

    @property
    def status_since(self) -> str:
        """The same: its items have come into their states at different times."""
        return self.status

    def with_items_again(self, indices: Sequence[int], group_id: str, folder: str) -> GroupState:
        """Return the state of this group when these items are sent again under that id; the others keep their ends."""
        made = GroupState(group_id, self.name, self.host, folder, len(self), labels=self.items.labels)
        made.on_error, made.on_interrupt, made.items.given = self.on_error, self.on_interrupt, self.items.given
        made.outputs_to, made.asked, made.arguments = self.outputs_to, self.asked, self.arguments
        made.has_value = self.has_value
        again = set(indices)
        for given in range(len(self)):
            index, ended = self.items.ended_after(given, None)
            if index not in again:
                made.items.end_item(index, ended)
        made.shown = len(self) - len(again)
        return made

    def stop(self) -> None:
        """End what has not ended."""
        if not self.done() and self.queue is not None:
            self.end()
            self.is_stopping = True

    def note_silence(self) -> None:
        """Take note that no heartbeat has come from one of its processes for `SILENT_AFTER_S`."""
        self._silence = self._silence.noticed()

    def set_state(self, state: str, reason: str = "") -> None:
        """Record what the group waits for, or what is being done for it."""
        self._reason = in_one_line(reason)

    def show_connection(self, trouble: str) -> None:
        """Why nothing is received from its host; "" while it is connected."""
        self._reason = in_one_line(trouble)

    def show_transfer(self, transfer: Transfer) -> None:
        """Take the transfer of files that are being sent."""
        self.transfer = transfer

    def describe_wait(self) -> str:
        return f"{self.id} {self.name} on {self.host} is {self.status_since}; waiting for it"
