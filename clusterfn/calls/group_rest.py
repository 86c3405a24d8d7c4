"""What becomes of the items of a group that no element runs: others are started, or the host concludes these items."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from clusterfn.bridge import layout
from clusterfn.calls import conclusion
from clusterfn.calls.element import ArrayTask, OfGroup
from clusterfn.calls.group_elements import Elements
from clusterfn.config.job_spec import Group
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, HostDiskFull, Unreachable
from clusterfn.hosts import loop
from clusterfn.scheduler.base import SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Reply

_AGAIN, _AGAIN_S = 6, 5.0


class Rest:
    """The items of one group that no element runs.

    Args:
        of: The group.
        elements: Its elements.
        end: Ends the group on this side: nothing more comes of it.

    Attributes:
        is_stopping: Whether the group was asked to end.
        is_concluding: Whether the host was asked to conclude the rest.
        gave_up: What ends the items that are left once all that has come of the others is loaded.
        last: The outcome of the last element that died.
    """

    is_stopping = is_concluding = False
    gave_up: ClusterfnError | None = None
    _is_starting = _is_looking_again = _bridge_is_damaged = False
    # Why the last elements could not run, if the disk of the host was full.
    _no_room: HostDiskFull | None = None

    def __init__(self, of: OfGroup, elements: Elements, end: Callable[[], None]) -> None:
        self._of, self._host, self._elements = of, of.queue.host, elements
        self._spec = cast(Group, of.job.group)
        self._end = end
        self._before, self._again = -1, 0
        # How long to wait for room before the next elements are started.
        self._pauses, self._room_until = iter(layout.ROOM_PAUSES_S), math.inf
        self.last: Mapping[str, Any] = {}

    def note_end(self, published: Mapping[str, Any]) -> None:
        """Record that an element has ended for good."""
        if published["kind"] != layout.RETURNED:
            self.last = published
        if published["kind"] == layout.UNSATISFIABLE:
            # Unless some items have ended, other elements could not run either.
            self._before = max(self._before, 0)
        if published["kind"] == layout.ENVIRONMENT and published.get("stage") == "start":
            self._bridge_is_damaged = True
        if published["kind"] == layout.HOST_DISK:
            self.note_room(HostDiskFull(published.get("message") or "the disk of the host is full"))
        self.look()

    def note_room(self, error: ClusterfnError) -> None:
        """Take note of an element that found no room on the host's disk: others are started after a pause."""
        if isinstance(error, HostDiskFull):
            self._no_room = error

    def look(self) -> None:
        """Start others, or conclude the rest, if nothing runs any more. Does not wait."""
        loop.begin(self._continue_or_conclude())

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
        error.host, error.job = error.host or self._of.state.host, error.job or self._of.state.id
        if self._elements.running() or not self._of.results.count_ended():
            self._of.state.items.fail(error)
            return
        self.gave_up = error
        self._end()

    async def _start_or_conclude(self) -> bool:
        """Start others, or conclude the rest; return whether to look again later."""
        ended = self._of.results.count_ended()
        # An element that begins when the rest has been concluded finds nothing.
        elements = list(self._elements.tasks.values())
        reporting = [element for element in elements if element.begun or not self.is_concluding]
        if self._is_starting or ended == self._spec.count or not all(element.over for element in reporting):
            return False
        progress, self._before = ended > self._before, ended
        # An element may have begun at the last moment.
        if self.is_concluding and not progress:
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
        if pause_s is not None and not self.is_stopping and not self.is_concluding:
            await self._start_others(self._spec.count - ended, pause_s)
        else:
            await self._fail(self.verdict())
        return False

    async def _start_others(self, left: int, pause_s: float) -> None:
        """Start elements for the items that are left, after the bridge is sent again if others found it damaged.

        Args:
            pause_s: How long to wait for room on the host's disk first.
        """
        count = max(1, min(self._spec.elements, math.ceil(left / self._spec.chunk)))
        when = f" in {pause_s:g} s, because the disk of {self._of.state.host} was full" if pause_s else ""
        console.tell(f"{left} of {self._spec.count} items have no process left: starting {count} more elements{when}")
        damaged, self._bridge_is_damaged = self._bridge_is_damaged, False
        before: list[Reply[bool]] = []
        self._is_starting, self._no_room = True, None
        try:
            await asyncio.sleep(pause_s)
            if damaged:
                # Without an answer the new elements find the bridge as it is.
                with contextlib.suppress(Unreachable):
                    before = await loop.in_thread(
                        lambda: self._host.bridge.mend(self._of.job.bridge), "clusterfn-bridge"
                    )
            if not (self.is_stopping or self._elements.is_closed):
                self._elements.start(self._elements.next_numbers(count), before)
        finally:
            self._is_starting = False

    def verdict(self) -> SchedulerVerdict:
        """Return the verdict on items that no element will run: that of the last element that died."""
        last, full = self.last, self._no_room
        if self.is_stopping:
            return conclusion.STOPPED
        if full is not None and last.get("kind") != layout.HOST_DISK:
            return SchedulerVerdict(layout.HOST_DISK, full.message, tuple(full.evidence), full.hint or "", "start")
        if not last:
            return SchedulerVerdict(layout.LOST, "the elements of the group ended before the item began")
        evidence, hint = tuple(last.get("evidence") or ()), last.get("hint") or ""
        return SchedulerVerdict(last["kind"], last.get("message") or "", evidence, hint, last.get("stage") or "start")

    def conclude(self, verdict: SchedulerVerdict) -> Future[None]:
        """Conclude every item without an element by this verdict; elements that have not begun never will."""
        return loop.start(self._fail(verdict))

    async def _fail(self, verdict: SchedulerVerdict) -> None:
        self.is_concluding = self._elements.is_closed = True
        element = self._elements.add(self._elements.next_numbers(1)[0])
        element.follow()
        try:
            await self.bury(element, verdict)
        finally:
            if self._elements.has_ended:
                element.close()

    async def bury(self, element: ArrayTask, verdict: SchedulerVerdict) -> None:
        """Have the host conclude; the first verdict asked for an element is final."""
        folder = element.folder
        try:
            await conclusion.fail_unfinished_items(self._host, self._of.state, folder, self._of.job.bridge, verdict)
        except ClusterfnError as error:
            element.over = True
            self._give_up(error)
            raise
