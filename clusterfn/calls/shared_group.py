"""A map on several hosts: an ordinary group on each has its share, and further groups have what it gets later.

Each of these groups, a part, counts its items as the whole does, and reports to the whole what becomes of them. An item
belongs to one part at a time. A host that has nothing left gets half of what has not begun at the one that would take
longest: that one gives up items that no process has taken, and only what it says it has given up is sent. Each host has
the arguments of all items for that. All of it is on the hosts: their parts go on, and are found, without this process.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import math
import posixpath
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, DIED, PENDING, RETURNED, RUNNING
from clusterfn.bridge.supervisor.text import format_duration
from clusterfn.calls import conclusion
from clusterfn.calls.group import E, JobGroup, R
from clusterfn.calls.group_state import GroupState, ItemOutcome
from clusterfn.calls.retry import retry_items
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts import exit_flush, loop
from clusterfn.hosts.rpc.link import ConnectionState

if TYPE_CHECKING:
    from clusterfn.calls.group_run import GroupRun
    from clusterfn.hosts.rpc.reply import Reply

# A host without a connection for this long is given up, if another one has a connection.
GONE_S = 60.0
_LOOK_S, _TIMEOUT_S = 0.2, 60.0


class Load(NamedTuple):
    """What is left of a map on one host. The host with the greatest load is to get what another one has given up.

    Attributes:
        is_there: Whether it has a connection.
        works: Whether most of what has ended there has returned: others would not either.
        is_idle: Whether nothing is left.
        per_s: How many have returned in a second so far.
        takes_s: How long it would take for what is left.
    """

    is_there: bool
    works: bool
    is_idle: bool
    per_s: float
    takes_s: float


def shares(count: int, weights: Sequence[float]) -> list[range]:
    """Divide so many items by these weights.

    Example:
        >>> shares(10, [8, 4, 0.5])
        [range(0, 6), range(6, 10), range(10, 10)]
    """
    bounds = [round(count * sum(weights[:place]) / sum(weights)) for place in range(len(weights) + 1)]
    return list(map(range, bounds, bounds[1:]))


class Parts:
    """Which part of a map on several hosts has each item, and which items no part has at the moment.

    Attributes:
        whole: The state of the map.
        runs: What was sent of it, by its state, in that order.
        first: By host, the part that it got at the beginning, which has the arguments of all items.
        owner: The part that has each item.
        given_up: How items ended that a host has given up, and that no other host has yet.
        is_closed: Whether no item moves any more.
        missing: Why a host could not be reached when this program attached.
    """

    def __init__(self, whole: GroupState) -> None:
        self.runs: dict[GroupState, GroupRun] = {}
        self.first: dict[str, GroupRun] = {}
        self.owner: dict[int, PartState] = {}
        self.given_up: dict[int, ItemOutcome] = {}
        self.given_up_at, self.is_closed = 0.0, False
        self.missing: list[ClusterfnError] = []
        self.whole, self._old_notes, self._turn = whole, set[str](), 0
        # Those that were asked to give up items, and have not: they have none that no process has taken.
        self._asked: set[GroupState] = set()
        # It is held while items are sent, so that they are sent before the parts are closed, or never.
        self._sending = threading.Lock()
        whole.end = functools.partial(self.close, _stop)

    def add(self, run: GroupRun) -> None:
        self.runs[run.group] = run
        self.first.setdefault(run.group.host, run)

    def give_to(self, part: PartState) -> None:
        """From now on its items belong to this part, and have not ended."""
        self.whole.reopen(part.own)
        for index in part.own:
            self.owner[index] = part
            self.given_up.pop(index, None)

    def take_end(self, part: PartState, index: int, ended: ItemOutcome) -> None:
        """Take how an item ended, unless another part has it now; one that was given up is kept for another host."""
        if self.owner[index] is not part or self.whole.ended(index) is not None:
            # Another part has it now, or it was ended as its host was given up.
            return
        if ended.state == CANCELLED and getattr(ended.error, "message", "") == conclusion.GIVEN_UP_ITEM.message:
            self.given_up[index], self.given_up_at = ended, time.monotonic()
            self._asked.discard(part)
            if not self.is_closed:
                return
        self.whole.end_item(index, ended)

    def lose(self, indices: Iterable[int], error: Exception) -> None:
        """End these items, unless they have ended: nothing more can be received of them."""
        for index in set(indices) - self.given_up.keys():
            self.whole.end_item(index, ItemOutcome(DIED, None, error))

    def end_given_up(self) -> None:
        """End what no host has as it was given up."""
        for index, ended in list(self.given_up.items()):
            self.whole.end_item(index, self.given_up.pop(index, ended))

    def open(self, host: str = "") -> list[GroupRun]:
        """Return the parts that are not over, or those of one host."""
        runs = [run for part, run in list(self.runs.items()) if not part.done() and part.lost is None]
        return [run for run in runs if host in ("", run.group.host)]

    def close(self, end: Callable[[GroupRun], object]) -> None:
        """Move nothing any more, and end each open part this way; raise an error once all were asked."""
        self.is_closed = True
        with loop.speaking(lambda: "items are being sent to another host"), self._sending:
            # A host that was given up may have come back.
            runs = self.open() + [run for part, run in list(self.runs.items()) if part.lost is not None]
        self.end_given_up()
        closed = layout.CLOSED + secrets.token_hex(4)
        # The last comes first. Each is asked, whatever the others raise.
        with contextlib.ExitStack() as stack:
            for error in self.missing:
                stack.callback(_raise, error)
            for run in runs:
                stack.callback(end, run)
            # Other programs move nothing either. These notes are on their way before anything is ended.
            noted = [note(first, closed) for first in self.first.values() if is_there(first) and _is_laid_out(first)]
        for reply in noted:
            reply.result(_TIMEOUT_S)

    def retry(self, failed: Sequence[int]) -> None:
        """Have items that have ended run again, as if their hosts had given them up."""
        if self.missing:
            # What this program could not ask for may run there.
            raise self.missing[0]
        self._old_notes = {name for first in self.first.values() if is_there(first) for name in notes(first)}
        self.is_closed = self.whole.is_stopping = False
        self.given_up = {index: ended for index in failed if (ended := self.whole.ended(index)) is not None}
        self.given_up_at = time.monotonic()
        self.whole.reopen(failed)
        self.whole.shown = len(self.whole) - len(failed)
        loop.begin(self.follow(self.move_some))
        exit_flush.await_at_exit(loop.start(self._see_sent()))

    async def follow(self, work: Callable[[], object]) -> None:
        """Move items between the hosts until all have ended: `move_some`, or follow another process that does."""
        self._turn += 1
        turn = self._turn
        # A retry may begin another turn before this one has seen that all items had ended.
        while not self.whole.done():
            await asyncio.sleep(_LOOK_S)
            if turn != self._turn:
                return
            self.fail_gone()
            reasons = [f"{run.group.host}: {run.group.reason}" for run in self.open() if run.group.reason]
            self.whole.set_reason("; ".join(reasons))
            is_one_idle = any(not self.open(host) for host in self.first)
            if not self.is_closed and (self.given_up or is_one_idle):
                with contextlib.suppress(ClusterfnError):
                    await loop.in_thread(work, "clusterfn-shared-map")
            if self.given_up and time.monotonic() > self.given_up_at + GONE_S:
                # Who had them given up has not sent them, but may have been stopped itself for a while.
                self.end_given_up()

    def move_some(self) -> None:
        """Send what was given up to another host; without any, have one give up half of what has not begun there."""
        by_host, states = {host: self._load(host) for host in self.first}, self.whole.states
        if self.given_up:
            # All lines of an answer come together.
            best = max(by_host, key=lambda host: by_host[host])
            if _is_awaited(self.first[best]):
                self.given_up_at = time.monotonic()
            elif time.monotonic() > self.given_up_at + _LOOK_S:
                self._send_given_up(sorted(self.given_up), best)
        elif any(load.is_there and load.works and load.is_idle for load in by_host.values()):
            pending: list[GroupState] = [part for index, part in list(self.owner.items()) if states[index] == PENDING]
            may_give = set(pending) - self._asked
            runs = [run for run in self.open() if run.group in may_give and by_host[run.group.host].is_there]
            for run in sorted(runs, key=lambda run: by_host[run.group.host].takes_s)[-1:]:
                self._asked.add(run.group)
                most = math.ceil(pending.count(run.group) / 2)
                exit_flush.await_at_exit(loop.start(self._see_moved(run, most)))

    async def _see_moved(self, run: GroupRun, most: int) -> None:
        await run.give_up(most)
        await self._see_sent()

    async def _see_sent(self) -> None:
        """Wait until `move_some` has sent what was given up: a program may end meanwhile."""
        while self.given_up and not self.is_closed:
            await asyncio.sleep(_LOOK_S)

    def _load(self, host: str) -> Load:
        """Return what is left on a host."""
        states = self.whole.states
        counts = collections.Counter(states[index] for index, part in list(self.owner.items()) if part.host == host)
        left, returned = counts[PENDING] + counts[RUNNING], counts[RETURNED]
        works = 2 * returned > sum(counts.values()) - left
        per_s = returned / (time.monotonic() - self.whole.submitted_at)
        return Load(is_there(self.first[host]), works, not left, per_s, left / max(per_s, 1e-9))

    def _send_given_up(self, indices: Sequence[int], host: str) -> None:
        """Send these items to that host, from its own copy, unless a program has ended the map."""
        first, job_id = self.first[host], secrets.token_hex(8)
        try:
            with self._sending:
                # Another turn may have sent them.
                indices = [index for index in indices if index in self.given_up]
                ends = [name for name in notes(first) if name.startswith(layout.CLOSED)]
                if not self._old_notes.issuperset(ends):
                    self.is_closed = True
                if self.is_closed:
                    self.end_given_up()
                if self.is_closed or not indices:
                    return
                # Who attaches later finds the part by this file, so the file comes first.
                note(first, f"{len(self.runs):06d}-{job_id}").result(_TIMEOUT_S)
                self.add(retry_items(first, indices, job_id, f"from {self.owner[indices[0]].host}"))
        except (ClusterfnError, OSError) as error:
            # The user's working directory may be gone, or the connection.
            for index in () if _is_awaited(first) else indices:
                self.given_up.pop(index, None)
            # What is still given up was not sent, and is once there is a connection.
            self.lose(indices, error)

    def fail_gone(self) -> None:
        """Give up a host that has had no connection for long, while another one has had one for as long."""
        links = {host: _link_of(run) for host, run in self.first.items()}
        names = {host: link.name for host, link in links.items() if time.time() > link.since + GONE_S}
        for run in self.open() if "connected" in names.values() else ():
            if names.get(host := run.group.host) in ("reconnecting", "closed"):
                message = f"{host} has been gone for {format_duration(GONE_S)}, and the item may have begun there"
                hint = "group.retry_failed() runs it on another host"
                run.group.fail(HostError(message, host=host, job=run.group.id, hint=hint))


def note(first: GroupRun, name: str) -> Reply[bool]:
    """Note on its host what has become of a map since that got its first part."""
    return first.host.connection.put(posixpath.join(first.folder, layout.MORE, name), b"")


def notes(first: GroupRun) -> list[str]:
    """Return what programs have noted there, in that order."""
    answer = first.host.connection.run(["ls", "-1", posixpath.join(first.folder, layout.MORE)]).result(_TIMEOUT_S)
    return answer.out.decode("utf-8", "replace").split()


def _stop(run: GroupRun) -> None:
    run.group.is_stopping = True
    run.stop()


def _raise(error: BaseException) -> None:
    raise error


def is_there(run: GroupRun) -> bool:
    """Whether its host has a connection."""
    return _link_of(run).name == "connected"


def _is_awaited(run: GroupRun) -> bool:
    """Whether its connection is lost, and may come back by itself or by a login."""
    return _link_of(run).name in ("reconnecting", "waiting")


def _is_laid_out(run: GroupRun) -> bool:
    """Whether its folder is there: a note would make it before what is being sent."""
    sent = run.queue.laid_out
    return sent is None or (sent.done() and sent.exception(0) is None)


def _link_of(run: GroupRun) -> ConnectionState:
    """Return the state of the connection to its host. Opens none."""
    return run.host.connection.link.state if run.host.is_connected else ConnectionState("closed", 0.0)


class PartState(GroupState):
    """One part of a map on several hosts: these items, by their indices in the whole. The others count as ended."""

    def __init__(self, parts: Parts, part_id: str, host: str, folder: str, own: Sequence[int]) -> None:
        whole = parts.whole
        super().__init__(part_id, whole.name, host, folder, len(whole))
        self.parts, self.own = parts, frozenset(own)
        self.labels, self.arguments, self.outputs_to = whole.labels, whole.arguments, whole.outputs_to
        self.on_interrupt, self.sent_here, self.has_value = whole.on_interrupt, whole.sent_here, whole.has_value
        self.asked, self.given = whole.asked, whole.given
        self._ended = dict.fromkeys(set(range(len(whole))) - set(own), ItemOutcome(RETURNED))
        parts.give_to(self)

    def with_items_again(self, indices: Sequence[int], group_id: str, folder: str) -> PartState:
        made = PartState(self.parts, group_id, self.host, folder, indices)
        made.given = self.given
        return made

    def begin_item(self, index: int) -> None:
        super().begin_item(index)
        if self.parts.owner[index] is self:
            self.parts.whole.begin_item(index)

    def end_item(self, index: int, ended: ItemOutcome) -> None:
        if self.ended(index) is None:
            super().end_item(index, ended)
            self.parts.take_end(self, index, ended)

    def fail(self, error: ClusterfnError) -> None:
        super().fail(error)
        self.parts.lose([index for index in self.own if self.parts.owner[index] is self], error)


class SharedGroup(JobGroup[R, E]):
    """A `JobGroup` on several hosts.

    Args:
        follow_moves: Takes the parts that another process has sent; None if this process moves items.
    """

    def __init__(self, parts: Parts, follow_moves: Callable[[], object] | None = None) -> None:
        super().__init__(parts.whole)
        self._parts = parts
        loop.begin(parts.follow(follow_moves or parts.move_some))

    @property
    def hosts(self) -> list[str]:
        return [self._parts.owner[index].host for index in range(len(self))]

    def stop(self) -> None:
        # A host that was given up may have come back, and still run what has ended here.
        self._known.is_stopping = True
        self._known.end()

    def withdraw(self) -> None:
        self._parts.close(lambda run: run.withdraw())

    def retry_failed(self) -> JobGroup[R, E]:
        if not (self.done() and self.failed):
            return super().retry_failed()
        self._parts.retry(sorted(self.failed))
        return self

    def _run_of(self, index: int) -> GroupRun:
        owner = self._parts.owner[index]
        if owner not in self._parts.runs:
            raise ClusterfnError(f"{owner.host} could not be reached", host=owner.host, job=owner.id)
        return self._parts.runs[owner]
