"""A group that was sent: follows its elements, starts new ones while items are left, and has the rest concluded.

`group_elements` starts them and follows each, `item_results` collects what they report about items, and `conclusion`
has the host conclude. Callbacks run on the connection's reader thread, so they never wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import math
import posixpath
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import DIED, SHORT, UNKNOWN
from clusterfn.calls import conclusion, leaving, liveness, remote_state
from clusterfn.calls.element import ArrayTask, GroupOnHost
from clusterfn.calls.following import distrust
from clusterfn.calls.group_elements import Elements
from clusterfn.calls.group_state import GroupState, ItemOutcome
from clusterfn.calls.item_results import ItemResults
from clusterfn.calls.queue_place import is_from_host
from clusterfn.config.job_spec import JobSpec
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, HostDiskFull, Unreachable
from clusterfn.hosts import loop
from clusterfn.scheduler.base import SchedulerLimits, SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState

# The latter for a group, which may have thousands of items.
_TIMEOUT_S, _BURIAL_S = 60.0, 600.0
# How often, and after what pauses, the host is asked again to conclude the items that are left.
_AGAIN, _AGAIN_S, _LOOK_S = 6, 5.0, 0.2


class GroupRun(GroupOnHost):
    """A group that was sent, and what is known of it on its host.

    A retry, which has the try before, is a group of its own there, of the items that have no end yet.
    """

    _is_stopping = _is_starting = _is_looking_again = _bridge_is_damaged = False
    # What ends the items that are left once all that has come of the others is loaded.
    _gave_up: ClusterfnError | None = None
    # Why the last elements could not run, if the disk of the host was full.
    _no_room: HostDiskFull | None = None

    def __init__(
        self, host: HostState, job: JobSpec, group: GroupState, limits: SchedulerLimits, earlier: GroupRun | None = None
    ) -> None:
        super().__init__(host, job, group)
        self.limits, self._earlier = limits, earlier
        self._watches: list[Reply[Any]] = []
        self.item_results = ItemResults(host, job, group, self._all_items_ended)
        self.elements = Elements(self, limits)
        self._before, self._again = -1, 0
        # How long to wait for room before the next elements are started.
        self._pauses, self._room_until = iter(layout.ROOM_PAUSES_S), math.inf
        # The outcome of the last element that died.
        self._last: Mapping[str, Any] = {}
        group.queue, group.end = self.queue, self.stop

    def results_of(self, index: int) -> ItemResults:
        """Return what has the results and files of an item: of one that is not retried, those of the try before."""
        if self._earlier is None or index in self.item_results.on_host:
            return self.item_results
        return self._earlier.results_of(index)

    def start(self, numbers: range, after: Sequence[Reply[Any]] = ()) -> None:
        self._watch()
        self.elements.start(numbers, after)

    def follow(self, numbers: Iterable[int]) -> None:
        self._watch()
        self.elements.follow(numbers)

    def _watch(self) -> None:
        """Have the host say once each item has its line, and if the folder of the group is gone."""
        attempt, connection = layout.attempt_dir(self.folder, 1), self.host.connection
        complete = connection.wait(posixpath.join(attempt, layout.OUTCOME))
        loop.begin(self._follow_rest(complete))
        # Its elements have files once they begin, and some of them may wait for days.
        is_there = connection.still(
            posixpath.join(attempt, layout.HEARTBEAT),
            liveness.SILENT_AFTER_S,
            lambda: None,
            within=self.folder,
            after=[self.queue.laid_out] if self.queue.laid_out is not None else [],
            on_gone=lambda: loop.begin(self._end_if_lost()),
        )
        self._watches = [complete, is_there]

    async def _end_if_lost(self) -> None:
        """End the group if its folder was gone at several looks."""
        error = await conclusion.find_loss(self.queue)
        if error is not None:
            error.host, error.job = self.group.host, self.group.id
            self.host.bridge.distrust()
            leaving.forget_going(self.group)
            self.group.fail(error)
            self.end()

    async def _follow_rest(self, complete: Reply[bytes]) -> None:
        """Find elements that another client started, once each item has its line."""
        try:
            await complete
            there = await remote_state.list_elements(self.host.connection, self.folder)
            if not self.elements.has_ended:
                self.elements.read(there)
        except (ClusterfnError, concurrent.futures.CancelledError) as error:
            # No element may be left that could report this, unless the group has ended.
            if isinstance(error, ClusterfnError) and not self.elements.has_ended:
                self.group.fail(error)

    def attach(self, left: remote_state.RemoteGroupState) -> None:
        """Follow a group that another process sent, and conclude it if that process died while it did so."""
        self._is_stopping = left.is_stopped
        self.elements.is_closed = bool(left.given_up)
        self.follow(sorted({*range(1, self.spec.elements + 1), *left.numbers}))
        self.elements.read(left.unclaimed)
        self.elements.queued()
        if self.elements.has_ended:
            # It may have ended meanwhile, in the loop.
            self.end()
        if left.is_complete:
            return
        for number in left.given_up:
            # The group gets its error.
            loop.start(self._fail(conclusion.STOPPED, self.elements.tasks[number]))
        for number in left.moved:
            # How many were asked for first counts.
            loop.begin(self.give_up(1, self.elements.tasks[number]))
        if left.is_stopped and not left.given_up:
            self.queue.cancel()
            self.conclude(conclusion.STOPPED)

    def is_caught_up(self, left: remote_state.RemoteGroupState) -> bool:
        """Whether what the elements had reported by then has been received, or nothing more will be."""
        # The items that are not retried have ended.
        ended = len(self.group) - self.spec.count + self.item_results.count_ended()
        everything = self.group.has_news(len(self.group) - 1)
        return everything or (self.item_results.is_caught_up(left.journals) and self.group.has_news(ended - 1))

    # what its elements say

    def element_ended(
        self, element: ArrayTask, state: str, how: Mapping[str, Any] | ClusterfnError, _: object = None
    ) -> None:
        if state == UNKNOWN and element.over:
            return
        element.over = state != UNKNOWN
        if not isinstance(how, ClusterfnError):
            self._take_outcome(how)
        elif isinstance(how, HostDiskFull):
            self._no_room = how
        else:
            if element.over and not self.elements.running():
                leaving.forget_going(self.group)
            self.group.fail(how)
            return
        loop.begin(self._continue_or_conclude())

    def _take_outcome(self, published: Mapping[str, Any]) -> None:
        kind = published["kind"]
        if kind != layout.RETURNED:
            self._last = published
        if kind == layout.UNSATISFIABLE:
            # Unless some items have ended, other elements could not run either.
            self._before = max(self._before, 0)
        if kind == layout.ENVIRONMENT and published.get("stage") == "start":
            self._bridge_is_damaged = True
        else:
            distrust(self.host, published)
        if kind == layout.HOST_DISK:
            self._no_room = HostDiskFull(published.get("message") or "the disk of the host is full")

    def elements_refused(self, error: BaseException) -> None:
        refused = self.queue.refusal(error, "group")
        if self.elements.tasks:
            left = sum(not element.over for element in self.elements.all())
            if left:
                console.warn(f"{refused.message}; {left} elements take over all of the work")
            if isinstance(refused, HostDiskFull):
                self._no_room = refused
            loop.begin(self._continue_or_conclude())
            return
        if is_from_host(error):
            leaving.forget_going(self.group)
            self.queue.remove_folder()
        self.group.fail(refused)
        self.end()

    # the items that no element runs

    async def _continue_or_conclude(self) -> None:
        """Start others, or conclude the rest, if nothing runs any more."""
        try:
            while await self._start_or_conclude() and not self._is_looking_again:
                self._is_looking_again = True
                await asyncio.sleep(_AGAIN_S)
                self._is_looking_again = False
        except ClusterfnError as error:
            # The host can no longer be asked, and no element is left that could report.
            self._give_up(error)

    def _give_up(self, error: ClusterfnError) -> None:
        """End each item that is left with this error; the whole group, if something of it runs or no item has ended."""
        error.host, error.job = error.host or self.group.host, error.job or self.group.id
        if self.elements.running() or not self.item_results.count_ended():
            self.group.fail(error)
            return
        self._gave_up = error
        self.end()

    async def _start_or_conclude(self) -> bool:
        """Start others, or conclude the rest; return whether to look again later."""
        ended = self.item_results.count_ended()
        # An element that begins when the rest has been concluded finds nothing.
        reporting = [element for element in self.elements.all() if element.begun or not self.elements.is_closed]
        are_over = all(element.over for element in reporting)
        if self.elements.has_ended or self._is_starting or ended == self.spec.count or not are_over:
            return False
        progress, self._before = ended > self._before, ended
        # An element may have begun at the last moment.
        if self.elements.is_closed and not progress:
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
        if pause_s is not None and not (self._is_stopping or self.elements.is_closed):
            await self._start_others(self.spec.count - ended, pause_s)
        else:
            await self._fail(self._verdict())
        return False

    async def _start_others(self, left: int, pause_s: float) -> None:
        """Start elements for the items that are left, after a pause for room; send a bridge that is damaged again."""
        there = await remote_state.list_elements(self.host.connection, self.folder)
        if unknown := [number for number in there if number not in self.elements.tasks]:
            # Another process has added them, and they may have what is left.
            self.elements.read(unknown)
            return
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
            if not (self._is_stopping or self.elements.is_closed):
                self.elements.start(self.elements.next_numbers(count), before)
        finally:
            self._is_starting = False

    def _verdict(self) -> SchedulerVerdict:
        """Return the verdict on items that no element will run: that of the last element that died."""
        last, full = self._last, self._no_room
        if self._is_stopping:
            return conclusion.STOPPED
        if full is not None and last.get("kind") != layout.HOST_DISK:
            return SchedulerVerdict(layout.HOST_DISK, full.message, tuple(full.evidence), full.hint or "", "start")
        if not last:
            return SchedulerVerdict(layout.LOST, "the elements of the group ended before the item began")
        evidence, hint = tuple(last.get("evidence") or ()), last.get("hint") or ""
        return SchedulerVerdict(last["kind"], last.get("message") or "", evidence, hint, last.get("stage") or "start")

    def conclude(self, verdict: SchedulerVerdict) -> concurrent.futures.Future[None]:
        return loop.start(self._fail(verdict))

    async def _fail(self, verdict: SchedulerVerdict, element: ArrayTask | None = None) -> None:
        self.elements.is_closed = True
        if element is None:
            element = self.elements.add_burial()
            element.follow()
        try:
            await self._bury(element, verdict)
        except ClusterfnError as error:
            element.over = True
            self._give_up(error)
            raise
        finally:
            if self.elements.has_ended:
                element.close()

    async def _bury(self, element: ArrayTask, verdict: SchedulerVerdict) -> None:
        """Have the host end all items that no element has, or so many, in this one: its first verdict is final."""
        request = json.dumps(verdict.as_dict()).encode()
        answer = await self.host.bridge.supervise(
            "bury", element.folder, bridge=self.job.bridge, stdin=request, timeout_s=_BURIAL_S
        )
        if answer.rc != 0:
            conclusion.parse_conclusion(answer, self.host.settings, self.folder, "group")

    # its end

    def stop(self) -> None:
        self._is_stopping = True
        if self.queue.stop_sending():
            return
        self.host.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)
        self.queue.cancel()

        async def look() -> None:
            for element in self.elements.running():
                loop.begin(liveness.look_until_it_ends(element))

        loop.begin(conclusion.end_if_stuck(self.queue, self.group.done, self.group.set_reason, look))
        # The host continues without an answer.
        with contextlib.suppress(Unreachable):
            self._await_failed(self._verdict())

    def withdraw(self) -> None:
        """Keep items from ever starting that no element has taken."""
        if not self.queue.stop_sending():
            self._await_failed(conclusion.WITHDRAWN_ITEM)

    async def give_up(self, most: int, element: ArrayTask | None = None) -> None:
        """Have so many items at most that no element has end as given up, for another host, and receive their ends."""
        element = element or self.elements.add_burial()
        # Ask until the host answers: what it had begun to give up when it failed, nothing else there would end.
        while not self.elements.has_ended:
            try:
                await self._bury(element, conclusion.GIVEN_UP_ITEM._replace(most=most))
                break
            except ClusterfnError:
                await asyncio.sleep(_AGAIN_S)
        # Its folder is there only now.
        if not element.begun:
            element.follow()
        while not (element.over or self.elements.has_ended):
            await asyncio.sleep(_LOOK_S)

    def _await_failed(self, verdict: SchedulerVerdict) -> None:
        what = f"waiting for {self.group.host} to conclude what has not begun of {self.group.id[:SHORT]}"
        loop.result(self.conclude(verdict), what, _TIMEOUT_S)

    def _all_items_ended(self) -> None:
        """End the group; an element that died may have been the one to publish its outcome."""
        if self._gave_up is not None:
            for index in range(len(self.group)):
                self.group.end_item(index, ItemOutcome(DIED, None, self._gave_up))
        elif self._last and self.group.done() and not self.elements.is_closed:
            self.conclude(self._verdict())
        self.end()

    def end(self) -> None:
        """Follow it no more, and load what has come."""
        self.elements.end()
        self.item_results.close()
        self.queue.stop_waiting()
        for watch in self._watches:
            watch.cancel()
