"""One element of a group: a task of a job array on SLURM, elsewhere a process of its own. It is followed as a job is.

What it reports about its items goes to `ItemResults`, and what it waits for to the state of its group.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING, SUSPENDED
from clusterfn.calls import conclusion, liveness
from clusterfn.calls.following import AgentSource, OnOutput
from clusterfn.calls.item_results import ItemResults, ItemStream
from clusterfn.calls.queue_place import QueuePlace
from clusterfn.calls.run import Location, Run
from clusterfn.config.job_spec import Group, JobSpec
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts import loop
from clusterfn.hosts.rpc.requests import Followed

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState
    from clusterfn.scheduler.base import SchedulerVerdict


class GroupOnHost:
    """A group on its host: what its elements share, and what they tell it, from any thread. None of that may wait.

    Attributes:
        job: What it was sent as.
        group: Its state, which displays read.
        spec: How many items it has, and how they are shared out.
        queue: Its place in the scheduler's queue.
        item_results: What collects the results of its items.
    """

    item_results: ItemResults

    def __init__(self, host: HostState, job: JobSpec, group: GroupState) -> None:
        self.host, self.job, self.group = host, job, group
        self.spec = cast(Group, job.group)
        self.folder = layout.job_dir(job.root, job.id)
        self.queue = QueuePlace(host, self.folder, layout.job_name(job.name, job.id))

    def element_ended(
        self, element: ArrayTask, state: str, how: Mapping[str, Any] | ClusterfnError, _: object = None
    ) -> None:
        """Take the outcome of an element, or why none is known; UNKNOWN if nothing more can be received."""

    def elements_refused(self, error: BaseException) -> None:
        """Take why elements were not started, which are dropped."""

    def conclude(self, verdict: SchedulerVerdict) -> object:
        """Conclude every item without an element by this verdict; elements that have not begun never will."""


class ArrayTask(Run):
    """One element of a group, by its number. What it prints, and the progress of its files, are not shown."""

    def __init__(self, of: GroupOnHost, number: int) -> None:
        super().__init__(ElementLocation(of, number))
        self._of = of
        self.begun = self.over = False
        self.end = of.element_ended
        self.source = JournalSource(self, of.item_results, number)

    def follow_when_claimed(self) -> None:
        """Follow it once it has a claim: before that it has no files."""
        claim = self.at.connection.wait(posixpath.join(self.folder, layout.CLAIM))
        self.source.awaited = claim
        loop.begin(self._see_claimed(claim))

    async def _see_claimed(self, coming: Reply[bytes]) -> None:
        error = await coming.error()
        if self.is_closed or self.begun:
            return
        if error is not None:
            self.lose(error if isinstance(error, ClusterfnError) else HostError(str(error), host=self.host))
            return
        claim = coming.result(0).decode("ascii", "replace")
        self.at.scheduler_id = conclusion.submission_of(claim) or self.at.scheduler_id
        self.follow_now()

    def follow(self) -> None:
        self.begun = True
        self.source.follow()

    def follow_now(self) -> None:
        """Follow it without a claim: one that only gave up items never has one, others may get it later."""
        if not self.begun:
            awaited = self.source.awaited
            self.follow()
            liveness.watch_heartbeat(self)
            if awaited is not None:
                awaited.cancel()

    def note_silence(self) -> None:
        self._of.group.note_silence()

    def set_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        self._now = state, reason
        self._of.group.set_reason(reason if state in (PENDING, SUSPENDED) else "")

    def note_quiet(self, why: str, item: str = "") -> None:
        if why:
            self._of.item_results.say_quiet(item, why)

    def show_connection(self, trouble: str) -> None:
        self._of.group.set_reason(trouble)


class ElementLocation(Location):
    """Where an element of a group is."""

    def __init__(self, of: GroupOnHost, number: int) -> None:
        folder, name = layout.element_dir(of.folder, number), f"{of.queue.scheduler_name}.{number}"
        super().__init__(of.host, of.group.id, folder, name, of.job.results, of.job.bridge)
        self._number = number

    def log_path(self, stream: str) -> str:
        if stream != "scheduler":
            return super().log_path(stream)
        name = self.host.scheduler.element_log(self._number, self.scheduler_id)
        return posixpath.join(posixpath.dirname(posixpath.dirname(self.folder)), name)


class JournalSource(AgentSource):
    """What comes of an element: the journal and the values of each attempt. What it prints is not shown."""

    _stream: ItemStream

    def __init__(self, run: Run, results: ItemResults, number: int) -> None:
        super().__init__(run)
        self._results, self._number = results, number

    def follow_files(self, shown_by: Sequence[OnOutput], heard: Mapping[str, int]) -> Reply[bytes]:
        at, results = self.run.at, self._results
        stream = self._stream = ItemStream(self._number, at.attempt)
        if at.results.max_bytes is not None:
            stream.values = at.path(layout.VALUES)
        files = [
            Followed(at.path(layout.EVENTS), self.take_events),
            Followed(at.path(layout.JOURNAL), lambda data: results.take_lines(stream, data)),
        ]
        if not stream.values:
            files.append(Followed(at.path(layout.VALUES), lambda data: results.take_values(stream, data)))
        self.awaited = at.connection.follow(files, at.path(layout.OUTCOME))
        return self.awaited

    def take_rest(self) -> None:
        self._results.take_values(self._stream, b"", is_end=True)
