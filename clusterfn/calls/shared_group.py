"""A map on several hosts: an ordinary group on each has its share, and further groups have what it gets later.

Each of these groups, a part, counts its items as the whole does, and reports to the whole what becomes of them. An item
belongs to one part at a time. A host that has nothing left gets half of what has not begun at the one that would take
longest: that one gives up items that no process has taken, and only what it has confirmed is sent. Each host has the
arguments of all items for that. All of it is on the hosts: their parts go on, and are found, without this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import posixpath
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import CANCELLED, DIED, PENDING, RETURNED
from clusterfn.bridge.supervisor.text import format_duration
from clusterfn.calls import conclusion
from clusterfn.calls.group import E, JobGroup, R
from clusterfn.calls.group_state import GroupState, ItemOutcome
from clusterfn.calls.retry import retry_items
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts import loop

if TYPE_CHECKING:
    from clusterfn.calls.group_run import GroupRun

# A host without a connection for this long is given up, if another one has a connection.
GONE_S = 60.0
# A host that has given fewer items than this is not asked again for so long.
_FEW, _PAUSE_S = 2, 5.0
_LOOK_S, _TIMEOUT_S = 0.2, 60.0
_ELSEWHERE = ItemOutcome(RETURNED)


class Load(NamedTuple):
    """What is left of a map on one host: all items, and those that have not begun.

    Attributes:
        per_s: How many have returned in a second so far.
        gives, takes: Whether it may be asked for items, or get some.
    """

    left: int
    waiting: int
    per_s: float
    gives: bool = True
    takes: bool = True


def next_move(loads: Mapping[str, Load]) -> tuple[str, str, int] | None:
    """Return from which host how many items are to go to which, or None.

    Example:
        >>> next_move({"a": Load(0, 0, 20.0), "b": Load(110, 100, 10.0), "c": Load(20, 10, 10.0)})
        ('b', 'a', 50)
    """
    idle = [name for name, load in loads.items() if load.takes and not load.left]
    givers = [name for name, load in loads.items() if load.gives and load.waiting]
    if not idle or not givers:
        return None
    slowest = max(givers, key=lambda name: loads[name].left / max(loads[name].per_s, 1e-9))
    return slowest, max(idle, key=lambda name: loads[name].per_s), math.ceil(loads[slowest].waiting / 2)


def shares(count: int, weights: Sequence[float]) -> list[int]:
    """Divide so many items by these weights.

    Example:
        >>> shares(10, [8, 4, 0.5])
        [6, 4, 0]
    """
    bounds = [round(count * sum(weights[:place]) / sum(weights)) for place in range(len(weights) + 1)]
    return [end - begin for begin, end in zip(bounds, bounds[1:])]


class Parts:
    """Which part of a map on several hosts has each item, and which items no part has at the moment.

    Attributes:
        runs: All that was sent of the map, in that order.
        first: By host, the part that it got at the beginning, which has the arguments of all items.
        owner: The part that has each item.
        given_up: How items ended that a host has given up, and that no other host has yet.
        is_closed: Whether no item moves any more.
        news: Is notified when an item was given up, or a part is over.
    """

    def __init__(self, whole: GroupState) -> None:
        self.runs: list[GroupRun] = []
        self.first: dict[str, GroupRun] = {}
        self.owner: dict[int, PartState] = {}
        self.given_up: dict[int, ItemOutcome] = {}
        self.given_up_at = 0.0
        self.is_closed = False
        self.news = threading.Condition()
        self._whole = whole

    def add(self, run: GroupRun) -> None:
        """Take a part, before it can report anything."""
        self.runs.append(run)
        self.first.setdefault(run.group.host, run)

    def give_to(self, part: PartState) -> None:
        """From now on its items belong to this part, and have not ended."""
        with self.news:
            self._whole.reopen(part.own)
            for index in part.own:
                self.owner[index] = part
                self.given_up.pop(index, None)

    def take_end(self, part: PartState, index: int, ended: ItemOutcome) -> None:
        """Take how an item ended, unless another part has it now; one that was given up is kept for another host."""
        with self.news:
            is_given_up = ended.state == CANCELLED and conclusion.WITHDRAWN_ITEM.message in str(ended.error)
            if self.owner[index] is part and is_given_up and not self.is_closed:
                self.given_up[index], self.given_up_at = ended, time.monotonic()
            elif self.owner[index] is part:
                self._whole.end_item(index, ended)
            if is_given_up or part.done():
                self.news.notify_all()

    def lose(self, indices: Iterable[int], error: ClusterfnError) -> None:
        """End these items, unless they have ended: nothing more can be received of them."""
        for index in set(indices) - self.given_up.keys():
            self._whole.end_item(index, ItemOutcome(DIED, None, error))

    def open(self, host: str = "") -> list[GroupRun]:
        """Return the parts that are not over, or those of one host."""
        runs = [run for run in list(self.runs) if not run.group.done() and run.group.lost is None]
        return [run for run in runs if host in ("", run.group.host)]

    def close(self, end: Callable[[GroupRun], object]) -> None:
        """Move nothing any more, and end each open part this way; raise the first error, once all were asked."""
        with self.news:
            self.is_closed = True
            for index, ended in self.given_up.items():
                self._whole.end_item(index, ended)
        errors = []
        for run in self.open():
            try:
                end(run)
            except ClusterfnError as error:
                errors.append(error)
        if errors:
            raise errors[0]


class SharedState(GroupState):
    """The whole of a map on several hosts, which has its `parts`."""

    def __init__(self, group_id: str, name: str, host: str, folder: str, count: int) -> None:
        super().__init__(group_id, name, host, folder, count)
        self.parts = Parts(self)

    @property
    def reason(self) -> str:
        return "; ".join(f"{run.group.host}: {run.group.reason}" for run in self.parts.open() if run.group.reason)

    def stop(self) -> None:
        self.is_stopping = True
        self.parts.close(lambda run: run.group.stop())


class PartState(GroupState):
    """One part of a map on several hosts: these items, by their indices in the whole. The others count as ended."""

    def __init__(self, whole: SharedState, part_id: str, host: str, folder: str, own: Sequence[int]) -> None:
        super().__init__(part_id, whole.name, host, folder, len(whole))
        self.whole, self.own = whole, own
        self.labels, self.arguments, self.outputs_to = whole.labels, whole.arguments, whole.outputs_to
        self.on_interrupt, self.sent_here, self.has_value = whole.on_interrupt, whole.sent_here, whole.has_value
        self.asked, self.given = whole.asked, whole.given
        self._ended = dict.fromkeys(set(range(len(whole))) - set(own), _ELSEWHERE)
        whole.parts.give_to(self)

    def with_items_again(self, indices: Sequence[int], group_id: str, folder: str) -> PartState:
        made = PartState(self.whole, group_id, self.host, folder, indices)
        made.given = self.given
        return made

    def begin_item(self, index: int) -> None:
        super().begin_item(index)
        if self.whole.parts.owner[index] is self:
            self.whole.begin_item(index)

    def end_item(self, index: int, ended: ItemOutcome) -> None:
        if self.ended(index) is None:
            super().end_item(index, ended)
            self.whole.parts.take_end(self, index, ended)

    def fail(self, error: ClusterfnError) -> None:
        super().fail(error)
        parts = self.whole.parts
        parts.lose([index for index in self.own if parts.owner[index] is self], error)


class Mover:
    """Moves the items of a map between its hosts until all have ended.

    Args:
        find_moves: Takes parts that another process has sent since; None if this process moves the items itself.
    """

    def __init__(self, whole: SharedState, find_moves: Callable[[], object] | None = None) -> None:
        self.whole, self._parts, self._find_moves = whole, whole.parts, find_moves
        self._paused_until: dict[str, float] = {}
        self._gone_since: dict[str, float] = {}
        self._turn = 0
        self._begin()

    def _begin(self) -> None:
        self._turn += 1
        loop.begin(self._tend(self._turn))

    async def _tend(self, turn: int) -> None:
        # A retry begins another turn, perhaps before this one has seen that all items had ended.
        while not self.whole.done() and turn == self._turn:
            await asyncio.sleep(_LOOK_S)
            self._give_up_gone_hosts()
            is_one_idle = any(not self._parts.open(host) for host in self._parts.first)
            if not self._parts.is_closed and (self._parts.given_up or is_one_idle):
                work = self._move_some if self._find_moves is None else self._follow_moves
                await loop.in_thread(work, "clusterfn-shared-map")

    def _follow_moves(self) -> None:
        """Take what another process has moved; without one, end what nobody has."""
        with contextlib.suppress(ClusterfnError):
            if self._find_moves is not None:
                self._find_moves()
        if self._parts.given_up and time.monotonic() > self._parts.given_up_at + GONE_S:
            self._parts.close(lambda run: None)

    def _move_some(self) -> None:
        """Have one host give up items, and send what it has given up to another one."""
        parts = self._parts
        by_host = {host: self._load(host) for host in parts.first}
        move = next_move(by_host)
        if parts.given_up:
            # Their lines came late.
            taker = max(by_host, key=lambda host: (by_host[host].takes, by_host[host].per_s))
            move = parts.owner[min(parts.given_up)].host, taker, 0
        if move is None:
            return
        giver, taker, most = move
        left = most
        # Without an answer the host keeps them, or their lines come later.
        with contextlib.suppress(ClusterfnError):
            for run in parts.open(giver):
                left -= run.give_up(left) if left else 0
        with parts.news:
            parts.news.wait_for(lambda: len(parts.given_up) >= most - left or parts.is_closed, _TIMEOUT_S)
            indices = [] if parts.is_closed else sorted(parts.given_up)
        if len(indices) < _FEW:
            self._paused_until[giver] = time.monotonic() + _PAUSE_S
        try:
            if indices:
                self._send(indices, taker, f"from {giver}")
        except ClusterfnError as error:
            for index in indices:
                parts.given_up.pop(index, None)
            parts.lose(indices, error)

    def _load(self, host: str) -> Load:
        """Return what is left on a host."""
        whole, states = self.whole, self.whole.states
        ends = {index: whole.ended(index) for index, part in list(self._parts.owner.items()) if part.host == host}
        left = [index for index, ended in ends.items() if ended is None]
        returned = sum(ended is not None and ended.error is None for ended in ends.values())
        is_there = _link_of(self._parts.first[host]) == "connected"
        gives = is_there and time.monotonic() >= self._paused_until.get(host, 0.0)
        per_s = returned / (time.monotonic() - whole.submitted_at)
        # On a host where nothing returns, nothing else would.
        return Load(len(left), sum(states[index] == PENDING for index in left), per_s, gives, is_there and returned > 0)

    def _send(self, indices: Sequence[int], host: str, why: str) -> None:
        """Send these items to that host, from its own copy."""
        first, job_id = self._parts.first[host], secrets.token_hex(8)
        # Who attaches later finds the part by this file, so the file comes first.
        name = posixpath.join(first.folder, layout.MORE, f"{len(self._parts.runs):06d}-{job_id}")
        first.host.connection.put(name, b"").result(_TIMEOUT_S)
        self._parts.add(retry_items(first, indices, job_id, why))

    def retry(self, failed: Sequence[int]) -> None:
        """Send these items again, to one host from which the others get their share.

        Raises:
            ClusterfnError: None can be reached, or the items are no longer there.
        """
        whole, parts = self.whole, self._parts
        hosts = [host for host, run in parts.first.items() if _link_of(run) == "connected"]
        if not hosts:
            raise HostError("none of the hosts can be reached", host=whole.host, job=whole.id)
        parts.is_closed, whole.is_stopping, self._find_moves = False, False, None
        self._send(failed, max(hosts, key=lambda host: self._load(host).per_s), "again")
        whole.shown = len(whole) - len(failed)
        self._begin()

    def _give_up_gone_hosts(self) -> None:
        """Give up a host that has had no connection for long, while another one has."""
        links = {host: _link_of(run) for host, run in self._parts.first.items()}
        for host, link in links.items():
            if link in ("connected", "waiting") or "connected" not in links.values():
                self._gone_since.pop(host, None)
            elif time.monotonic() > self._gone_since.setdefault(host, time.monotonic()) + GONE_S:
                message = f"{host} has been gone for {format_duration(GONE_S)}, and the item may have begun there"
                hint = "group.retry_failed() runs it on another host"
                for run in self._parts.open(host):
                    run.group.fail(HostError(message, host=host, job=run.group.id, hint=hint))


def _link_of(run: GroupRun) -> str:
    """Return the name of the state of the connection to its host. Opens none."""
    return run.host.connection.link.state.name if run.host.is_connected else "closed"


class SharedGroup(JobGroup[R, E]):
    """A `JobGroup` on several hosts."""

    def __init__(self, mover: Mover) -> None:
        super().__init__(mover.whole)
        self._mover, self._parts = mover, mover.whole.parts

    @property
    def hosts(self) -> list[str]:
        return [self._parts.owner[index].host for index in range(len(self))]

    def withdraw(self) -> None:
        self._parts.close(lambda run: run.withdraw())

    def retry_failed(self) -> JobGroup[R, E]:
        if self.done() and self.failed:
            self._mover.retry(sorted(self.failed))
            return self
        return super().retry_failed()

    def _run_of(self, index: int) -> GroupRun:
        owner = self._parts.owner[index]
        for run in self._parts.runs:
            if run.group is owner:
                return run
        raise ClusterfnError(f"{owner.host} could not be reached", host=owner.host, job=owner.id)
