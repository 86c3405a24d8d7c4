"""A group that was sent: follows its elements, starts new ones while items are left, and has the rest concluded.

`group_elements` starts them and follows each, `item_results` collects what they report about items, and `conclusion`
has the host conclude. Callbacks run on the connection's reader thread, so they never wait.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import posixpath
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.calls import conclusion, leaving, liveness, outcome, remote_state
from clusterfn.calls.element import (
    ElementEnded,
    ElementInconclusive,
    ElementRequeued,
    ElementSignal,
    ElementsRefused,
    OfGroup,
)
from clusterfn.calls.group_elements import Elements
from clusterfn.calls.group_rest import Rest
from clusterfn.calls.item_results import ItemResults
from clusterfn.calls.queue_place import QueuePlace, is_from_host
from clusterfn.config.job_spec import Group, JobSpec
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, HostDiskFull, Unreachable
from clusterfn.hosts import loop, remote_files
from clusterfn.scheduler.base import SchedulerLimits, SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState
    from clusterfn.calls.remote_state import RemoteGroupState
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState

    Again = tuple["GroupRun", Sequence[int]]

_TIMEOUT_S = 60.0


class GroupRun:
    """A group that was sent, and what is known of it on its host.

    Args:
        again: The try before, and the index in `group` of each item that is retried; on the host they are a group of
            their own.

    Attributes:
        job: What it was sent as.
        spec: How many items it has, and how they are shared out.
        group: Its state, which displays read.
        limits: What the scheduler allows.
        queue: Its place in the scheduler's queue.
        item_results: What collects the results of its items.
        elements: What runs them.
        rest: Those of its items that no element runs.
    """

    def __init__(
        self, host: HostState, job: JobSpec, group: GroupState, limits: SchedulerLimits, again: Again | None = None
    ) -> None:
        self.host, self.job, self.group, self.limits = host, job, group, limits
        self.spec = cast(Group, job.group)
        self.folder = layout.job_dir(job.root, job.id)
        self.queue = QueuePlace(host, self.folder, layout.job_name(job.name, job.id))
        self._earlier: GroupRun | None = None
        numbers: Sequence[int] = range(self.spec.count)
        if again is not None:
            self._earlier, numbers = again
        place = outcome.JobLocation(host.settings.name, job.id, self.folder, job.results)
        self.item_results = ItemResults(
            group.items,
            numbers,
            place,
            self._item_ended,
            self._all_items_ended,
            lambda path, sink, begin, end: host.connection.get(path, sink, begin, until=end),
        )
        of = OfGroup(job, group, self.queue, self.item_results, self.take)
        self.elements = Elements(of, limits)
        self.rest = Rest(of, self.elements, self._end)
        self._complete: Reply[bytes] | None = None
        self._folder_watch: Reply[None] | None = None
        group.queue, group.end = self.queue, self.stop

    def results_of(self, index: int) -> ItemResults:
        """Return what has the results and files of an item: of one that is not retried, those of the try before."""
        if self._earlier is None or self.item_results.has(index):
            return self.item_results
        return self._earlier.results_of(index)

    def _item_ended(self, index: int, kind: str) -> None:
        """Fetch the files that `outputs=` names of an item that has returned; say what cannot be fetched."""
        # The host has removed what is damaged, so the next call must send it again.
        if kind == layout.PAYLOAD_BROKEN:
            self.host.contents.distrust()
        to = self.group.outputs_to
        for pattern in self.job.outputs if to is not None and kind == layout.RETURNED else ():
            folder, own = self.item_results.work_folder(index), cast(Path, to) / str(index)
            try:
                remote_files.fetch(self.host.connection, folder, pattern, own, index, self.group.show_transfer)
            except (ClusterfnError, OSError) as failed:
                console.tell(remote_files.not_fetched(failed, pattern, self.group.id, index))

    def take(self, signal: ElementSignal) -> None:
        """Take what the group has to act on, from any thread. Does not wait."""
        if isinstance(signal, ElementEnded):
            self.rest.note_end(signal.published)
        elif isinstance(signal, ElementsRefused):
            self._drop(signal.numbers, signal.error)
        elif isinstance(signal, ElementInconclusive):
            self._note_inconclusive(signal.error)
        elif isinstance(signal, ElementRequeued):
            self.elements.queued()
        else:
            self.rest.conclude(signal.verdict)

    def _drop(self, numbers: Sequence[int], error: BaseException) -> None:
        """Drop these elements, which were not started; the group ends if none is left."""
        refused = self.queue.refusal(error, "group")
        self.elements.drop(numbers)
        if self.elements.tasks:
            left = sum(not element.over for element in self.elements.tasks.values())
            if left:
                console.warn(f"{refused.message}; {left} elements take over all of the work")
            self.rest.note_room(refused)
            self.rest.look()
            return
        if is_from_host(error):
            leaving.forget_going(self.group)
        self.group.items.fail(refused)
        self._end()
        if is_from_host(error):
            self.queue.remove_folder()

    def start(self, numbers: range, after: Sequence[Reply[Any]] = ()) -> None:
        """Start these elements and follow them."""
        self._watch()
        self.elements.start(numbers, after)

    def follow(self, numbers: Iterable[int]) -> None:
        """Follow these elements as soon as they begin."""
        self._watch()
        self.elements.follow(numbers)

    def _watch(self) -> None:
        """Have the host say once each item has its line, and if the folder of the group is gone."""
        if self._complete is None:
            outcome_path = posixpath.join(layout.attempt_dir(self.folder, 1), layout.OUTCOME)
            self._complete = self.host.connection.wait(outcome_path)
            loop.begin(self._follow_rest(self._complete))
            after = [self.queue.laid_out] if self.queue.laid_out is not None else []
            # Its elements have files once they begin, and some of them may wait for days.
            beginning = posixpath.join(layout.attempt_dir(self.folder, 1), layout.HEARTBEAT)
            self._folder_watch = self.host.connection.still(
                beginning,
                liveness.SILENT_AFTER_S,
                lambda: None,
                within=self.folder,
                after=after,
                on_gone=lambda: loop.begin(self._end_if_lost()),
            )

    async def _end_if_lost(self) -> None:
        """End the group if its folder was gone at several looks."""
        error = await conclusion.find_loss(self.host, self.folder, self.queue.scheduler_name)
        if error is None:
            return
        error.host, error.job = self.group.host, self.group.id
        self.host.bridge.distrust()
        leaving.forget_going(self.group)
        self.group.items.fail(error)
        self._end()

    async def _follow_rest(self, complete: Reply[bytes]) -> None:
        """Find elements that another client started, once each item has its line."""
        try:
            await complete
            there = await remote_state.list_elements(self.host.connection, self.folder)
        except concurrent.futures.CancelledError:
            # The group has ended.
            return
        except ClusterfnError as error:
            # No element may be left that could report this.
            if not self.elements.has_ended:
                self.group.items.fail(error)
            return
        self._read(there)

    def _read(self, there: Sequence[int]) -> None:
        """Read what these elements have reported, whether they have a claim or not."""
        self.elements.read(there)
        if self.elements.has_ended:
            self._end()

    def attach(self, left: RemoteGroupState) -> None:
        """Follow a group that another process sent, and conclude it if that process died while it did so."""
        self.rest.is_stopping = left.is_stopped
        self.rest.is_concluding = self.elements.is_closed = bool(left.given_up)
        self.follow(sorted({*range(1, self.spec.elements + 1), *left.numbers}))
        self._read(left.unclaimed)
        self.elements.queued()
        if not left.is_complete:
            for number in left.given_up:
                # The group gets its error.
                loop.start(self.rest.bury(self.elements.tasks[number], conclusion.STOPPED))
            if left.is_stopped and not left.given_up:
                self.queue.cancel()
                self.rest.conclude(conclusion.STOPPED)

    def is_caught_up(self, left: RemoteGroupState) -> bool:
        """Whether what the elements had reported by then has been received, or nothing more will be."""
        # The items that are not retried have ended.
        before = len(self.group) - self.spec.count
        everything = self.group.items.has_news(len(self.group) - 1)
        return everything or (
            self.item_results.is_caught_up(left.journals)
            and self.group.items.has_news(before + self.item_results.count_ended() - 1)
        )

    def _note_inconclusive(self, error: ClusterfnError) -> None:
        """Take note that the host cannot conclude one of its elements; on a full disk the rest is tried again."""
        if isinstance(error, HostDiskFull):
            self.rest.note_room(error)
            self.rest.look()
            return
        if not self.elements.running():
            leaving.forget_going(self.group)
        self.group.items.fail(error)

    def _all_items_ended(self) -> None:
        """End the group; an element that died may have been the one to publish its outcome."""
        if self.rest.gave_up is not None:
            self.group.items.end_rest(self.rest.gave_up)
        elif self.rest.last and self.group.done() and not self.rest.is_concluding:
            self.rest.conclude(self.rest.verdict())
        self._end()

    def stop(self) -> None:
        """End what runs, and keep the rest from ever starting."""
        self.rest.is_stopping = True
        if self.queue.stop_sending():
            return
        self.queue.await_submissions()
        self.host.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)
        self.queue.cancel()

        async def look() -> None:
            for element in self.elements.running():
                loop.begin(liveness.look_until_it_ends(element))

        group = self.group
        loop.begin(
            conclusion.end_if_stuck(self.queue, group.done, lambda left: group.set_state(group.state, left), look)
        )
        # The host continues without an answer.
        with contextlib.suppress(Unreachable):
            self._await_failed(self.rest.verdict())

    def withdraw(self) -> None:
        """Keep items from ever starting that no element has taken."""
        if self.queue.stop_sending():
            return
        self.queue.await_submissions()
        self._await_failed(conclusion.WITHDRAWN_ITEM)

    def _await_failed(self, verdict: SchedulerVerdict) -> None:
        what = f"waiting for {self.group.host} to conclude what has not begun of {self.group.id[:SHORT]}"
        loop.result(self.rest.conclude(verdict), what, _TIMEOUT_S)

    def _end(self) -> None:
        self.elements.end()
        self.item_results.close()
        self.queue.stop_waiting()
        for watch in (self._complete, self._folder_watch):
            if watch is not None:
                watch.cancel()
