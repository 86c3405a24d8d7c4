"""A map on several hosts: an ordinary group on each has its share, and further groups have what it gets later.

Each of these groups, a part, counts its items as the whole does, and reports to the whole what becomes of them. An item
belongs to one part at a time. A host that has nothing left gets half of what has not begun at the one that would take
longest: that one gives up items that no process has taken, and only what it has confirmed is sent. Each host has the
arguments of all items for that. All of it is on the hosts: their parts go on, and are found, without this process.
"""

from __future__ import annotations

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

if TYPE_CHECKING:
    from clusterfn.calls.group_run import GroupRun

# A host without a connection for this long is given up, if another one has a connection.
GONE_S = 60.0
# A host that has given fewer items than this is not asked again for so long.
_FEW, _PAUSE_S = 2, 5.0
_LOOK_S, _TIMEOUT_S = 1.0, 60.0
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


class SharedState(GroupState):
    """The whole of a map on several hosts.

    Attributes:
        parts: All that was sent of it, in that order.
        first: By host, the part that it got at the beginning, which has the arguments of all items.
        owner: The part that has each item.
        find_moves: Takes parts that another process has sent since; None if this process moves items itself.
    """

    find_moves: Callable[[], object] | None = None
    _is_closed = False

    def __init__(self, group_id: str, name: str, host: str, folder: str, count: int) -> None:
        super().__init__(group_id, name, host, folder, count)
        self.parts: list[GroupRun] = []
        self.first: dict[str, GroupRun] = {}
        self.owner: dict[int, PartState] = {}
        # How items ended that a host has given up, and that no other has got yet.
        self._given_up: dict[int, ItemOutcome] = {}
        self._given_up_at = 0.0
        self._paused_until: dict[str, float] = {}
        self._gone_since: dict[str, float] = {}
        self._news = threading.Condition()

    def add(self, run: GroupRun) -> None:
        """Take a part, before it can report anything."""
        self.parts.append(run)
        self.first.setdefault(run.group.host, run)

    def give_to(self, part: PartState) -> None:
        """From now on its items belong to this part, and have not ended."""
        again = set(part.own)
        with self._news, self._changed:
            self._order = [index for index in self._order if index not in again]
            for index in again:
                self.owner[index], self._states[index] = part, PENDING
                self._ended.pop(index, None)
                self._given_up.pop(index, None)
            self.ended_at = self.lost = None

    def take_end(self, part: PartState, index: int, ended: ItemOutcome) -> None:
        """Take how an item ended, unless another part has it now; one that was given up is kept for another host."""
        with self._news:
            is_given_up = ended.state == CANCELLED and conclusion.WITHDRAWN_ITEM.message in str(ended.error)
            if self.owner[index] is part and is_given_up and not self._is_closed:
                self._given_up[index], self._given_up_at = ended, time.monotonic()
            elif self.owner[index] is part:
                self.end_item(index, ended)
            if is_given_up or part.done():
                self._news.notify_all()

    def lose(self, indices: Iterable[int], error: ClusterfnError) -> None:
        """End these items, unless they have ended: nothing more can be received of them."""
        for index in set(indices) - self._given_up.keys():
            self.end_item(index, ItemOutcome(DIED, None, error))

    @property
    def reason(self) -> str:
        return "; ".join(f"{run.group.host}: {run.group.reason}" for run in self._open() if run.group.reason)

    def _open(self, host: str = "") -> list[GroupRun]:
        """Return the parts that are not over, or those of one host."""
        runs = [run for run in list(self.parts) if not run.group.done() and run.group.lost is None]
        return [run for run in runs if host in ("", run.group.host)]

    def stop(self) -> None:
        self.is_stopping = True
        self.close(lambda run: run.group.stop())

    def close(self, end: Callable[[GroupRun], object]) -> None:
        """Move nothing any more, and end each open part this way; raise the first error, once all were asked."""
        with self._news:
            self._is_closed = True
            for index, ended in self._given_up.items():
                self.end_item(index, ended)
        errors = []
        for run in self._open():
            try:
                end(run)
            except ClusterfnError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def tend(self) -> None:
        """Move items between the hosts until all have ended, in a thread of its own."""
        threading.Thread(target=self._tend, name="clusterfn-shared-map", daemon=True).start()

    def _tend(self) -> None:
        while not self.done():
            with self._news:
                self._news.wait(_LOOK_S)
            self._give_up_gone_hosts()
            is_one_idle = any(not self._open(host) for host in self.first)
            if self._is_closed or not (self._given_up or is_one_idle):
                continue
            if self.find_moves is None:
                self._move_some()
                continue
            with contextlib.suppress(ClusterfnError):
                self.find_moves()
            # The process that moves items is gone.
            if self._given_up and time.monotonic() > self._given_up_at + GONE_S:
                self.close(lambda run: None)

    def _move_some(self) -> None:
        """Have one host give up items, and send what it has given up to another one."""
        by_host = {host: self._load(host) for host in self.first}
        move = next_move(by_host)
        if self._given_up:
            # Their lines came late.
            taker = max(by_host, key=lambda host: (by_host[host].takes, by_host[host].per_s))
            move = self.owner[min(self._given_up)].host, taker, 0
        if move is None:
            return
        giver, taker, most = move
        left = most
        # Without an answer the host keeps them, or their lines come later.
        with contextlib.suppress(ClusterfnError):
            for run in self._open(giver):
                left -= run.give_up(left) if left else 0
        with self._news:
            self._news.wait_for(lambda: len(self._given_up) >= most - left or self._is_closed, _TIMEOUT_S)
            indices = [] if self._is_closed else sorted(self._given_up)
        if len(indices) < _FEW:
            self._paused_until[giver] = time.monotonic() + _PAUSE_S
        try:
            if indices:
                self._send(indices, taker, f"from {giver}")
        except ClusterfnError as error:
            for index in indices:
                self._given_up.pop(index, None)
            self.lose(indices, error)

    def _load(self, host: str) -> Load:
        """Return what is left on a host."""
        states = self.states
        ends = {index: self.ended(index) for index, part in list(self.owner.items()) if part.host == host}
        left = [index for index, ended in ends.items() if ended is None]
        returned = sum(ended is not None and ended.error is None for ended in ends.values())
        is_there = _link_of(self.first[host]) == "connected"
        gives = is_there and time.monotonic() >= self._paused_until.get(host, 0.0)
        per_s = returned / (time.monotonic() - self.submitted_at)
        # On a host where nothing returns, nothing else would.
        return Load(len(left), sum(states[index] == PENDING for index in left), per_s, gives, is_there and returned > 0)

    def _send(self, indices: Sequence[int], host: str, why: str) -> None:
        """Send these items to that host, from its own copy."""
        first, job_id = self.first[host], secrets.token_hex(8)
        # Who attaches later finds the part by this file, so the file comes first.
        name = posixpath.join(first.folder, layout.MORE, f"{len(self.parts):06d}-{job_id}")
        first.host.connection.put(name, b"").result(_TIMEOUT_S)
        self.add(retry_items(first, indices, job_id, why))

    def retry(self, failed: Sequence[int]) -> None:
        """Send these items again, to one host from which the others get their share.

        Raises:
            ClusterfnError: None can be reached, or the items are no longer there.
        """
        hosts = [host for host, run in self.first.items() if _link_of(run) == "connected"]
        if not hosts:
            raise HostError("none of the hosts can be reached", host=self.host, job=self.id)
        self._is_closed, self.is_stopping, self.find_moves = False, False, None
        self._send(failed, max(hosts, key=lambda host: self._load(host).per_s), "again")
        self.shown = len(self) - len(failed)
        self.tend()

    def _give_up_gone_hosts(self) -> None:
        """Give up a host that has had no connection for long, while another one has."""
        links = {host: _link_of(run) for host, run in self.first.items()}
        for host, link in links.items():
            if link in ("connected", "waiting") or "connected" not in links.values():
                self._gone_since.pop(host, None)
            elif time.monotonic() > self._gone_since.setdefault(host, time.monotonic()) + GONE_S:
                message = f"{host} has been gone for {format_duration(GONE_S)}, and the item may have begun there"
                hint = "group.retry_failed() runs it on another host"
                for run in self._open(host):
                    run.group.fail(HostError(message, host=host, job=run.group.id, hint=hint))


def _link_of(run: GroupRun) -> str:
    """Return the name of the state of the connection to its host. Opens none."""
    return run.host.connection.link.state.name if run.host.is_connected else "closed"


class PartState(GroupState):
    """One part of a map on several hosts: these items, by their indices in the whole. The others count as ended."""

    def __init__(self, whole: SharedState, part_id: str, host: str, folder: str, own: Sequence[int]) -> None:
        super().__init__(part_id, whole.name, host, folder, len(whole))
        self.whole, self.own = whole, own
        self.labels, self.arguments, self.outputs_to = whole.labels, whole.arguments, whole.outputs_to
        self.on_interrupt, self.sent_here, self.has_value = whole.on_interrupt, whole.sent_here, whole.has_value
        self.asked, self.given = whole.asked, whole.given
        self._ended = dict.fromkeys(set(range(len(whole))) - set(own), _ELSEWHERE)
        whole.give_to(self)

    def with_items_again(self, indices: Sequence[int], group_id: str, folder: str) -> PartState:
        made = PartState(self.whole, group_id, self.host, folder, indices)
        made.given = self.given
        return made

    def begin_item(self, index: int) -> None:
        super().begin_item(index)
        if self.whole.owner[index] is self:
            self.whole.begin_item(index)

    def end_item(self, index: int, ended: ItemOutcome) -> None:
        if self.ended(index) is None:
            super().end_item(index, ended)
            self.whole.take_end(self, index, ended)

    def fail(self, error: ClusterfnError) -> None:
        super().fail(error)
        self.whole.lose([index for index in self.own if self.whole.owner[index] is self], error)


class SharedGroup(JobGroup[R, E]):
    """A `JobGroup` on several hosts."""

    def __init__(self, known: SharedState) -> None:
        super().__init__(known)
        self._shared = known

    @property
    def hosts(self) -> list[str]:
        return [self._shared.owner[index].host for index in range(len(self))]

    def withdraw(self) -> None:
        self._shared.close(lambda run: run.withdraw())

    def retry_failed(self) -> JobGroup[R, E]:
        if self.done() and self.failed:
            self._shared.retry(sorted(self.failed))
            return self
        return super().retry_failed()

    def _run_of(self, index: int) -> GroupRun:
        owner = self._shared.owner[index]
        for run in self._shared.parts:
            if run.group is owner:
                return run
        raise ClusterfnError(f"{owner.host} could not be reached", host=owner.host, job=owner.id)
