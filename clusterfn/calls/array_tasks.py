"""The elements of a group, each followed as a job is, by a `Follower` and its `LivenessMonitor`.

On SLURM an element is a task of a job array, elsewhere a process of its own. What it reports about its items goes to
`ItemResults`, its end to the group's tracker. Nothing is concluded here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING, SUSPENDED
from clusterfn.calls.entry import Entry
from clusterfn.calls.follower import Follower
from clusterfn.calls.group_state import GroupBackend
from clusterfn.calls.item_results import ItemStream
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts import loop
from clusterfn.hosts.rpc.requests import Followed

if TYPE_CHECKING:
    from clusterfn.calls.arriving import Arriving
    from clusterfn.hosts.connection import Reply


class ArrayTask(Entry):
    """One element of a group. What it prints, and the progress of its files, are not shown.

    Args:
        owner: Its group.
        number: Which of its elements.
    """

    def __init__(self, owner: GroupBackend, number: int) -> None:
        self.owner, self.number = owner, number
        self.begun = self.over = False
        self.host, self.id, self.folder = owner.group.host, owner.group.id, owner.folder
        self.submitted_at = owner.group.submitted_at
        self.tracker = ArrayTaskTracker(owner, number)
        self.tracker.entry = self

    def follow_when_claimed(self) -> None:
        """Follow it once it has a claim: before that it has no files."""
        claim = self.owner.connection.wait(posixpath.join(self.tracker.folder, layout.CLAIM))
        self.tracker.awaited = claim
        loop.begin(self._see_claimed(claim))

    async def _see_claimed(self, coming: Reply[bytes]) -> None:
        error = await coming.error()
        if self.tracker.is_closed or self.begun:
            return
        if error is not None:
            self.lose(error if isinstance(error, ClusterfnError) else HostError(str(error), host=self.host))
            return
        claim = coming.result(0)
        self.tracker.scheduler_id = claim.decode("ascii", "replace").strip() or self.tracker.scheduler_id
        self.follow()
        self.tracker.liveness.watch_heartbeat()

    def follow(self) -> None:
        """Follow it from its first attempt on."""
        self.begun = True
        self.tracker.follow()

    def follow_now(self) -> None:
        """Follow it without a claim.

        An element that only gave up items never has one, and one that waits again gets it later.
        """
        if not self.begun:
            awaited = self.tracker.awaited
            self.follow()
            self.tracker.liveness.watch_heartbeat()
            if awaited is not None:
                awaited.cancel()

    @property
    def waits(self) -> bool:
        """Whether it has not begun, or waits again."""
        return not self.over and self.state == PENDING

    def note_silence(self) -> None:
        self.owner.group.note_silence()

    def set_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        self._now = state, reason
        self.owner.group.set_state(state, reason if state in (PENDING, SUSPENDED) else "")

    def note_quiet(self, why: str, item: str = "") -> None:
        if why:
            self.owner.quiet(item, why)

    def show_connection(self, trouble: str) -> None:
        self.owner.group.show_connection(trouble)

    def settle(self, published: Mapping[str, Any], arriving: Arriving | None) -> None:
        self.over = True
        self.owner.ended(published)

    def lose(self, error: ClusterfnError) -> None:
        if not self.over:
            self.owner.group.fail(error)

    def fail(self, error: ClusterfnError, kind: str = "") -> None:
        self.owner.cannot_conclude(error)


class ArrayTaskTracker(Follower):
    """Follows an element: as a job, with the journal and the values of each attempt."""

    def __init__(self, owner: GroupBackend, number: int) -> None:
        folder, name = layout.element_dir(owner.folder, number), f"{owner.scheduler_name}.{number}"
        super().__init__(owner.session, folder, name, bridge=owner.job.bridge, results=owner.job.results)
        self._owner, self._number = owner, number
        self._stream = ItemStream(number, 1)

    def log_path(self, stream: str) -> str:
        """Return the file of a stream; for "scheduler" that of this element."""
        if stream != "scheduler":
            return super().log_path(stream)
        name = self.session.scheduler.element_log(self._number, self.scheduler_id)
        return posixpath.join(posixpath.dirname(posixpath.dirname(self.folder)), name)

    def _follow_files(self, shown_by: Sequence[Callable[[str, bytes], Any]], heard: Mapping[str, int]) -> Reply[bytes]:
        """Follow what the present attempt reports about its items, and their values; what it prints is not shown."""
        results, stream = self._owner.item_results, ItemStream(self._number, self.attempt)
        self._stream = stream
        if self.results.max_bytes is not None:
            stream.values = posixpath.join(self.attempt_folder, layout.VALUES)
        files = [
            self._file(layout.EVENTS, self._take_events),
            self._file(layout.JOURNAL, lambda data: results.take_lines(stream, data)),
        ]
        if not stream.values:
            files.append(self._file(layout.VALUES, lambda data: results.take_values(stream, data)))
        waiting = self.connection.follow(files, posixpath.join(self.attempt_folder, layout.OUTCOME))
        self.awaited = waiting
        return waiting

    def _take_outcome(self, data: bytes) -> Reply[bytes] | None:
        # Its other files have been read to their ends.
        self._owner.item_results.take_end(self._stream)
        return super()._take_outcome(data)

    def _open_next(self, fields: dict[str, Any]) -> Reply[bytes]:
        waiting = super()._open_next(fields)
        if fields["kind"] == layout.PREEMPTED:
            self._owner.queued()
        return waiting

    def _file(self, name: str, on_data: Callable[[bytes], Any]) -> Followed:
        return Followed(posixpath.join(self.attempt_folder, name), on_data)
