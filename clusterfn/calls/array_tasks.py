"""The elements of a group, each followed as a job is, by a `Tracker` and its `LivenessMonitor`.

On SLURM an element is a task of a job array, elsewhere a process of its own. What it reports about its items goes to
`ItemResults`, its end to the group's tracker. Nothing is concluded here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING, SUSPENDED
from clusterfn.calls.item_results import ItemResults, ItemStream
from clusterfn.calls.job_tracker import JobListener, Tracker
from clusterfn.errors import ClusterfnError, HostDiskFull, HostError

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState
    from clusterfn.config.job_spec import JobSpec
    from clusterfn.hosts.connection import HostConnection, Reply
    from clusterfn.hosts.host_state import HostState
    from clusterfn.hosts.landing import Value
    from clusterfn.hosts.transfer import Transfer


class ArrayTaskOwner(Protocol):
    """The group of an `ArrayTask`: what the task needs to know of it, and what it reports to it."""

    session: HostState
    job: JobSpec
    group: GroupState
    folder: str
    scheduler_name: str
    item_results: ItemResults

    @property
    def connection(self) -> HostConnection:
        """The connection to the group's host."""

    def queued(self) -> None:
        """Take note that an element waits in the scheduler's queue."""

    def ended(self, published: Mapping[str, Any]) -> None:
        """Take the final outcome of an element."""

    def quiet(self, item: str, told: str) -> None:
        """Say that an item has made no progress for long."""

    def cannot_conclude(self, error: ClusterfnError) -> None:
        """Take the error of an element that the host cannot conclude."""


class ArrayTask:
    """One element of a group: the `JobListener` of its tracker.

    Args:
        owner: Its group.
        number: Which of its elements.
    """

    def __init__(self, owner: ArrayTaskOwner, number: int) -> None:
        self.owner = owner
        self.number = number
        self.begun = self.over = False
        self.state, self.reason = PENDING, ""
        self.host, self.id, self.folder = owner.group.host, owner.group.id, owner.folder
        self.submitted_at = owner.group.submitted_at
        self.tracker = ArrayTaskTracker(owner, number)

    def follow_when_claimed(self) -> None:
        """Follow it once it has a claim: before that it has no files."""
        self.tracker.liveness.call_if_cannot_conclude(self.on_refused)
        self.tracker.liveness.call_if_silent(self.on_silent)
        claim = self.owner.connection.wait(posixpath.join(self.tracker.folder, layout.CLAIM))
        self.tracker.awaited = claim
        claim.add_done_callback(self._claimed)

    def _claimed(self, reply: Reply[bytes]) -> None:
        if self.tracker.closed or self.begun:
            return
        error = reply.exception(0)
        if error is not None:
            self.on_lost(error if isinstance(error, ClusterfnError) else HostError(str(error), host=self.host))
            return
        claim = reply.result(0)
        self.tracker.scheduler_id = claim.decode("ascii", "replace").strip() or self.tracker.scheduler_id
        self.follow()
        self.tracker.liveness.watch_heartbeat()

    def follow(self) -> None:
        """Follow it from its first attempt on."""
        self.begun = True
        self.tracker.follow(self, 1)

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

    def on_silent(self) -> None:
        """Report that its supervisor sends no heartbeat: to the group, unless its other elements have news."""
        self.owner.group.on_silent()

    def on_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        """Report what it waits for as what the group waits for."""
        self.state, self.reason = state, reason
        self.owner.group.on_state(state, reason if state in (PENDING, SUSPENDED) else "")

    def on_transfer(self, transfer: Transfer) -> None:
        """Ignore the transfer of its value: values of items come with their journal."""

    def on_output(self, stream: str, data: bytes) -> None:
        """Ignore what it prints: the output of an item is read on request."""

    def on_limited(self, told: str) -> None:
        """Ignore it: the outcomes of the items have the same note."""

    def on_retry(self, told: str) -> None:
        """Ignore the next attempt: items report themselves which of them run again."""

    def on_quiet(self, told: str, item: str = "") -> None:
        """Report an item without progress for long; "" once it makes progress again."""
        if told:
            self.owner.quiet(item, told)

    def on_connection(self, trouble: str) -> None:
        """Report why nothing is received from the host."""
        self.owner.group.on_connection(trouble)

    def on_outcome(self, published: Mapping[str, Any], _: Value | None) -> None:
        """Report that it has ended for good."""
        self.over = True
        self.owner.ended(published)

    def on_lost(self, error: ClusterfnError) -> None:
        """Report that nothing more can be received from the host."""
        if not self.over:
            self.owner.group.on_refused(error)

    def on_refused(self, error: ClusterfnError, kind: str = "") -> None:
        """Report that its outcome cannot be read, or that its host has no disk space or no files to publish one."""
        if not isinstance(error, HostDiskFull):
            self.tracker.session.distrust()
        error.host, error.job = self.host, self.id
        self.owner.cannot_conclude(error)


class ArrayTaskTracker(Tracker):
    """Follows an element: as a job, with the journal and the values of each attempt."""

    def __init__(self, owner: ArrayTaskOwner, number: int) -> None:
        job = owner.job
        super().__init__(owner.session, job.id, job.name, bridge=job.bridge, results=job.results)
        self.folder = layout.element_dir(owner.folder, number)
        self.scheduler_name = f"{owner.scheduler_name}.{number}"  # the scheduler is only asked about the whole group
        self.closed = False
        self._owner, self._number = owner, number

    def log_path(self, stream: str) -> str:
        """Return the file of a stream; for "scheduler" that of this element."""
        if stream != "scheduler":
            return super().log_path(stream)
        name = self.session.scheduler.element_log(self._number, self.scheduler_id)
        return posixpath.join(posixpath.dirname(posixpath.dirname(self.folder)), name)

    def follow(self, job: JobListener, attempt: int) -> None:
        """Follow an attempt from its beginning: what it reports about its items, their values, its outcome."""
        self.attempt = attempt
        self._watch_connection(job)
        self._partial = b""
        results, stream = self._owner.item_results, ItemStream(self._number, attempt)
        if self.results.max_bytes is not None:
            stream.values = posixpath.join(self.attempt_folder, layout.VALUES)
        lines = self._follow(layout.JOURNAL, lambda data: results.on_lines(stream, data))
        self._follows = [self._follow(layout.EVENTS, lambda data: self._on_events(job, data)), lines]
        if not stream.values:
            self._follows.append(self._follow(layout.VALUES, lambda data: results.on_values(stream, data)))
        waiting = self.connection.wait(posixpath.join(self.attempt_folder, layout.OUTCOME), drain=self._follows)
        waiting.add_done_callback(lambda reply: None if self.closed else self._drained(job, stream, reply))
        self.awaited = waiting

    def _drained(self, job: JobListener, stream: ItemStream, reply: Reply[bytes]) -> None:
        """Take the outcome of an attempt whose other files have been read to their ends."""
        if reply.exception(0) is None:
            self._owner.item_results.on_last(stream)
        self.receive_outcome(job, reply)

    def _follow_next(self, job: JobListener, told: dict[str, Any]) -> None:
        super()._follow_next(job, told)
        if told["kind"] == layout.PREEMPTED:
            self._owner.queued()

    def _follow(self, name: str, on_data: Callable[[bytes], Any]) -> Reply[Any]:
        return self.connection.follow(posixpath.join(self.attempt_folder, name), on_data)

    def end(self) -> None:
        """Stop following it, and cancel the open requests."""
        open_still = [*self._follows, *([self.awaited] if self.awaited else [])]
        self.closed = True
        super().end()
        for reply in open_still:
            if not reply.done():
                reply.cancel()
