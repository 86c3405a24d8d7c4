"""One element of a group: a task of a job array on SLURM, elsewhere a process of its own. It is followed as a job is.

What it reports about its items goes to `ItemResults`, and what it waits for to the state of its group. What the group
has to act on is a signal.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING, SUSPENDED
from clusterfn.calls import liveness
from clusterfn.calls.following import AgentSource, OnOutput
from clusterfn.calls.item_results import ItemResults, ItemStream
from clusterfn.calls.queue_place import QueuePlace
from clusterfn.calls.run import Location, Run
from clusterfn.config.job_spec import JobSpec
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts import loop
from clusterfn.hosts.rpc.requests import Followed
from clusterfn.scheduler.base import SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.calls.arriving import Arriving
    from clusterfn.calls.group_state import GroupState
    from clusterfn.hosts.connection import Reply


class ElementEnded(NamedTuple):
    """An element has ended for good, with this outcome."""

    published: Mapping[str, Any]


class ElementsRefused(NamedTuple):
    """These elements were not started."""

    numbers: Sequence[int]
    error: BaseException


class ElementInconclusive(NamedTuple):
    """The host cannot conclude an element."""

    error: ClusterfnError


class ElementRequeued(NamedTuple):
    """An element waits in the scheduler's queue again."""


class NoneWillBegin(NamedTuple):
    """Elements that have not begun never will, for this reason."""

    verdict: SchedulerVerdict


ElementSignal = Union[ElementEnded, ElementsRefused, ElementInconclusive, ElementRequeued, NoneWillBegin]


class OfGroup(NamedTuple):
    """What the elements of one group share.

    Attributes:
        job: What the group was sent as.
        state: Its own, which shows what it waits for.
        queue: Its place in the scheduler's queue.
        results: What collects the results of its items.
        put: Takes what the group has to act on, from any thread; does not wait.
    """

    job: JobSpec
    state: GroupState
    queue: QueuePlace
    results: ItemResults
    put: Callable[[ElementSignal], None]


class ArrayTask(Run):
    """One element of a group. What it prints, and the progress of its files, are not shown.

    Args:
        of: Its group.
        number: Which of its elements.
    """

    def __init__(self, of: OfGroup, number: int) -> None:
        super().__init__(ElementLocation(of, number))
        self._of = of
        self.begun = self.over = False
        self.source = JournalSource(self, of.results, number)

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
        claim = coming.result(0)
        self.at.scheduler_id = claim.decode("ascii", "replace").strip() or self.at.scheduler_id
        self.follow()
        liveness.watch_heartbeat(self)

    def follow(self) -> None:
        """Follow it from its first attempt on."""
        self.begun = True
        self.source.follow()

    def follow_now(self) -> None:
        """Follow it without a claim.

        An element that only gave up items never has one, and one that waits again gets it later.
        """
        if not self.begun:
            awaited = self.source.awaited
            self.follow()
            liveness.watch_heartbeat(self)
            if awaited is not None:
                awaited.cancel()

    @property
    def waits(self) -> bool:
        """Whether it has not begun, or waits again."""
        return not self.over and self.state == PENDING

    def note_silence(self) -> None:
        self._of.state.note_silence()

    def note_requeue(self) -> None:
        self._of.put(ElementRequeued())

    def set_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        self._now = state, reason
        self._of.state.set_state(state, reason if state in (PENDING, SUSPENDED) else "")

    def note_quiet(self, why: str, item: str = "") -> None:
        if why:
            self._of.results.say_quiet(item, why)

    def show_connection(self, trouble: str) -> None:
        self._of.state.show_connection(trouble)

    def settle(self, published: Mapping[str, Any], arriving: Arriving | None) -> None:
        self.over = True
        self._of.put(ElementEnded(published))

    def lose(self, error: ClusterfnError) -> None:
        if not self.over:
            self._of.state.items.fail(error)

    def fail(self, error: ClusterfnError, kind: str = "") -> None:
        self.over = True
        self._of.put(ElementInconclusive(error))


class ElementLocation(Location):
    """Where an element of a group is."""

    def __init__(self, of: OfGroup, number: int) -> None:
        folder = layout.element_dir(of.queue.folder, number)
        name = f"{of.queue.scheduler_name}.{number}"
        super().__init__(of.queue.host, of.state.id, folder, name, of.job.bridge, results=of.job.results)
        self._number = number

    def log_path(self, stream: str) -> str:
        """Return the file of a stream; for "scheduler" that of this element."""
        if stream != "scheduler":
            return super().log_path(stream)
        name = self.host.scheduler.element_log(self._number, self.scheduler_id)
        return posixpath.join(posixpath.dirname(posixpath.dirname(self.folder)), name)


class JournalSource(AgentSource):
    """What comes of an element: the journal and the values of each attempt. What it prints is not shown."""

    def __init__(self, run: Run, results: ItemResults, number: int) -> None:
        super().__init__(run)
        self._results, self._number = results, number
        self._stream = ItemStream(number, 1)

    def follow_files(self, shown_by: Sequence[OnOutput], heard: Mapping[str, int]) -> Reply[bytes]:
        """Follow what the present attempt reports about its items, and their values."""
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
        self._results.take_end(self._stream)
