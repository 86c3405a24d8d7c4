"""A group that was sent: follows its elements, starts new ones while items are left, and has the rest concluded.

`group_elements` starts them and follows each, `item_results` collects what they report about items, and `conclusion`
has the host conclude. Callbacks run on the connection's reader thread, so they never wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import posixpath
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.calls import conclusion, leaving, liveness, outcome, remote_state
from clusterfn.calls.element import (
    ArrayTask,
    ElementEnded,
    ElementInconclusive,
    ElementRequeued,
    ElementSignal,
    ElementsRefused,
    NoneWillBegin,
    OfGroup,
)
from clusterfn.calls.group_elements import Elements
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

_TIMEOUT_S = 60.0
_AGAIN, _AGAIN_S = 6, 5.0


@dataclass(frozen=True)
class Retried:
    """Items of a group that are retried: on the host they are a group of their own.

    Attributes:
        numbers: The index of each in the whole group.
        run: The try before, with the whole as it ended.
    """

    numbers: Sequence[int]
    run: GroupRun


class GroupRun:
    """A group that was sent, and what is known of it on its host.

    Args:
        retried: Which items of `group` it has, if not all.

    Attributes:
        job: What it was sent as.
        spec: How many items it has, and how they are shared out.
        group: Its state, which displays read.
        limits: What the scheduler allows.
        queue: Its place in the scheduler's queue.
        item_results: What collects the results of its items.
        elements: What runs them.
    """

    def __init__(
        self, host: HostState, job: JobSpec, group: GroupState, limits: SchedulerLimits,
        retried: Retried | None = None,
    ) -> None:  # fmt: skip
        self.host, self.job, self.group, self.limits = host, job, group, limits
        self.spec = cast(Group, job.group)
        self.folder = layout.job_dir(job.root, job.id)
        self.queue = QueuePlace(host, self.folder, layout.job_name(job.name, job.id))
        self.numbers = retried.numbers if retried else range(self.spec.count)
        self._earlier = retried.run if retried else None
        place = outcome.JobLocation(host.settings.name, job.id, self.folder, job.results)
        self.item_results = ItemResults(
            group.items, self.numbers, place, self._item_ended, self._all_items_ended,
            lambda path, sink, begin, end: host.connection.get(path, sink, begin, until=end),
        )  # fmt: skip
        self.elements = Elements(OfGroup(job, group, self.queue, self.item_results, self.take), limits)
        self._before, self._again = -1, 0
        self._stopping = self._is_starting = self._is_looking_again = False
        # Why the last elements could not run, if the disk of the host was full, and how long to wait before the next.
        self._no_room: HostDiskFull | None = None
        self._pauses, self._room_until = iter(layout.ROOM_PAUSES_S), math.inf
        # With either of these, no more elements are to begin.
        self._failing_rest = self._over = False
        # What ends the items that are left once all that has come of the others is loaded.
        self._gave_up: ClusterfnError | None = None
        self._last: Mapping[str, Any] = {}
        self._bridge_is_damaged = self._said_quiet = False
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
            self.host.contents.forget()
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
            self._note_end(signal.published)
        elif isinstance(signal, ElementsRefused):
            self._drop(signal.numbers, signal.error)
        elif isinstance(signal, ElementInconclusive):
            self._note_inconclusive(signal.error)
        elif isinstance(signal, ElementRequeued):
            self.elements.queued()
        elif isinstance(signal, NoneWillBegin):
            self.conclude_rest(signal.verdict)
        else:
            self._say_quiet(signal.item, signal.why)

    def _drop(self, numbers: Sequence[int], error: BaseException) -> None:
        """Drop these elements, which were not started; the group ends if none is left."""
        refused = self.queue.refusal(error, "group")
        self.elements.drop(numbers)
        if self.elements.tasks:
            left = sum(not element.over for element in self.elements.tasks.values())
            if left:
                console.warn(f"{refused.message}; {left} elements take over all of the work")
            self._note_room(refused)
            loop.begin(self._continue_or_conclude())
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
                beginning, liveness.SILENT_AFTER_S, lambda: None, within=self.folder, after=after,
                on_gone=lambda: loop.begin(self._end_if_lost()),
            )  # fmt: skip

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
            if not self._over:
                self.group.items.fail(error)
            return
        self._read(there)

    def _read(self, there: Sequence[int]) -> None:
        """Read what these elements have reported, whether they have a claim or not."""
        self.elements.read(there)
        if self._over:
            self._end()

    def attach(self, left: RemoteGroupState) -> None:
        """Follow a group that another process sent, and conclude it if that process died while it did so."""
        self._stopping = left.is_stopped
        self._failing_rest = self.elements.is_closed = bool(left.given_up)
        self.follow(sorted({*range(1, self.spec.elements + 1), *left.numbers}))
        self._read(left.unclaimed)
        self.elements.queued()
        if not left.is_complete:
            for number in left.given_up:
                # The group gets its error.
                loop.start(self._bury(self.elements.tasks[number], conclusion.STOPPED))
            if left.is_stopped and not left.given_up:
                self.queue.cancel()
                self.conclude_rest(conclusion.STOPPED)

    def is_caught_up(self, left: RemoteGroupState) -> bool:
        """Whether what the elements had reported by then has been received, or nothing more will be."""
        # The items that are not retried have ended.
        before = len(self.group) - self.spec.count
        everything = self.group.items.has_news(len(self.group) - 1)
        return everything or (
            self.item_results.is_caught_up(left.journals)
            and self.group.items.has_news(before + self.item_results.count_ended() - 1)
        )

    def _note_end(self, published: Mapping[str, Any]) -> None:
        """Record that an element has ended for good."""
        if published["kind"] != layout.RETURNED:
            self._last = published
        if published["kind"] == layout.UNSATISFIABLE:
            # Unless some items have ended, other elements could not run either.
            self._before = max(self._before, 0)
        if published["kind"] == layout.ENVIRONMENT and published.get("stage") == "start":
            self._bridge_is_damaged = True
        if published["kind"] == layout.HOST_DISK:
            self._note_room(HostDiskFull(published.get("message") or "the disk of the host is full"))
        loop.begin(self._continue_or_conclude())

    def _note_room(self, error: ClusterfnError) -> None:
        """Take note of an element that found no room on the host's disk: others are started after a pause."""
        if isinstance(error, HostDiskFull):
            self._no_room = error

    async def _continue_or_conclude(self) -> None:
        try:
            while await self._start_or_conclude() and not self._is_looking_again:
                self._is_looking_again = True
                await asyncio.sleep(_AGAIN_S)
                self._is_looking_again = False
        except ClusterfnError as error:
            # The host can no longer be asked, and no element is left that could report.
            self._give_up(error)

    def _give_up(self, error: ClusterfnError) -> None:
        """End the group with this error, or if nothing of it runs, each item that is left: the others have their ends.

        Without any end, the error is the group's.
        """
        error.host, error.job = error.host or self.group.host, error.job or self.group.id
        if self.elements.running() or not self.item_results.count_ended():
            self.group.items.fail(error)
            return
        self._gave_up = error
        self._end()

    async def _start_or_conclude(self) -> bool:
        """Start others, or conclude the rest; return whether to look again later."""
        ended = self.item_results.count_ended()
        # An element that begins when the rest has been concluded finds nothing.
        elements = list(self.elements.tasks.values())
        reporting = [element for element in elements if element.begun or not self._failing_rest]
        if self._is_starting or ended == self.spec.count or not all(element.over for element in reporting):
            return False
        progress, self._before = ended > self._before, ended
        # An element may have begun at the last moment.
        if self._failing_rest and not progress:
            self._again += 1
            if self._again > _AGAIN:
                message = "the host could not conclude the items that are left"
                self._give_up(self._no_room or ClusterfnError(message, stage="supervisor"))
            return self._again <= _AGAIN
        if progress:
            self._pauses, self._room_until = iter(layout.ROOM_PAUSES_S), time.monotonic() + sum(layout.ROOM_PAUSES_S)
        pause_s = 0.0 if progress else None
        if self._no_room is not None:
            # The elements themselves may have waited for room.
            pause_s = next(self._pauses, None) if time.monotonic() < self._room_until else None
        if pause_s is not None and not self._stopping and not self._failing_rest:
            await self._start_others(self.spec.count - ended, pause_s)
        else:
            await self._fail(self._verdict())
        return False

    async def _start_others(self, left: int, pause_s: float) -> None:
        """Start elements for the items that are left, after the bridge is sent again if others found it damaged.

        Args:
            pause_s: How long to wait for room on the host's disk first.
        """
        count = max(1, min(self.spec.elements, math.ceil(left / self.spec.chunk)))
        when = f" in {pause_s:g} s, because the disk of {self.group.host} was full" if pause_s else ""
        console.tell(f"{left} of {self.spec.count} items have no process left: starting {count} more elements{when}")
        damaged, self._bridge_is_damaged = self._bridge_is_damaged, False
        before: list[Reply[bool]] = []
        self._is_starting, self._no_room = True, None
        try:
            await asyncio.sleep(pause_s)
            if damaged:
                # Without an answer the new elements find the bridge as it is.
                with contextlib.suppress(Unreachable):
                    before = await loop.in_thread(lambda: self.host.bridge.mend(self.job.bridge), "clusterfn-bridge")
            if not (self._over or self._stopping or self._failing_rest):
                self.start(self.elements.next_numbers(count), before)
        finally:
            self._is_starting = False

    def _say_quiet(self, item: str, why: str) -> None:
        """Say that an item has made no progress for long; only of the first such item."""
        if not self._said_quiet:
            self._said_quiet = True
            known = item.isdecimal() and len(item) < 10 and int(item) < len(self.numbers)
            which = self.group.items.label(self.numbers[int(item)]) if known else f"an item of {self.group.id[:SHORT]}"
            console.warn(f"{which} has {why}: clusterfn stack {self.group.id[:SHORT]} shows where it waits")

    def _note_inconclusive(self, error: ClusterfnError) -> None:
        """Take note that the host cannot conclude one of its elements; on a full disk the rest is tried again."""
        if isinstance(error, HostDiskFull):
            self._note_room(error)
            loop.begin(self._continue_or_conclude())
            return
        if not self.elements.running():
            leaving.forget_going(self.group)
        self.group.items.fail(error)

    def _verdict(self) -> SchedulerVerdict:
        """Return the verdict on items that no element will run: that of the last element that died."""
        last, full = self._last, self._no_room
        if self._stopping:
            return conclusion.STOPPED
        if full is not None and last.get("kind") != layout.HOST_DISK:
            return SchedulerVerdict(layout.HOST_DISK, full.message, tuple(full.evidence), full.hint or "", "start")
        if not last:
            return SchedulerVerdict(layout.LOST, "the elements of the group ended before the item began")
        evidence, hint = tuple(last.get("evidence") or ()), last.get("hint") or ""
        return SchedulerVerdict(last["kind"], last.get("message") or "", evidence, hint, last.get("stage") or "start")

    def conclude_rest(self, verdict: SchedulerVerdict) -> Future[None]:
        """Conclude every item without an element by this verdict; elements that have not begun never will."""
        return loop.start(self._fail(verdict))

    async def _fail(self, verdict: SchedulerVerdict) -> None:
        self._failing_rest = self.elements.is_closed = True
        element = self.elements.add(self.elements.next_numbers(1)[0])
        element.follow()
        try:
            await self._bury(element, verdict)
        finally:
            if self._over:
                element.tracker.end()

    async def _bury(self, element: ArrayTask, verdict: SchedulerVerdict) -> None:
        """Have the host conclude; the first verdict asked for an element is final."""
        folder = element.tracker.folder
        try:
            await conclusion.fail_unfinished_items(self.host, self.group, folder, self.job.bridge, verdict)
        except ClusterfnError as error:
            element.over = True
            self._give_up(error)
            raise

    def _all_items_ended(self) -> None:
        """End the group; an element that died may have been the one to publish its outcome."""
        if self._gave_up is not None:
            self.group.items.end_rest(self._gave_up)
        elif self._last and self.group.done() and not self._failing_rest:
            self.conclude_rest(self._verdict())
        self._end()

    def stop(self) -> None:
        """End what runs, and keep the rest from ever starting."""
        self._stopping = True
        if self.queue.stop_sending():
            return
        self.queue.await_submissions()
        self.host.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)
        self.queue.cancel()

        async def look() -> None:
            for element in self.elements.running():
                loop.begin(element.tracker.liveness.look_until_it_ends())

        group = self.group
        loop.begin(
            conclusion.end_if_stuck(self.queue, group.done, lambda left: group.set_state(group.state, left), look)
        )
        # The host continues without an answer.
        with contextlib.suppress(Unreachable):
            self._await_failed(self._verdict())

    def withdraw(self) -> None:
        """Keep items from ever starting that no element has taken."""
        if self.queue.stop_sending():
            return
        self.queue.await_submissions()
        self._await_failed(conclusion.WITHDRAWN_ITEM)

    def _await_failed(self, verdict: SchedulerVerdict) -> None:
        what = f"waiting for {self.group.host} to conclude what has not begun of {self.group.id[:SHORT]}"
        loop.result(self.conclude_rest(verdict), what, _TIMEOUT_S)

    def _end(self) -> None:
        self._over = True
        self.item_results.close()
        self.queue.stop_waiting()
        for watch in (self._complete, self._folder_watch):
            if watch is not None:
                watch.cancel()
        self.elements.end()
