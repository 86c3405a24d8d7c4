"""Hundreds of jobs from a few clients, each of which may be killed: who has which, and what became of all.

A client that dies has a successor that attaches to what was sent. An order of which nobody knows whether it was sent is
given again under another id; if it has begun after all, it is followed to its end, too.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.judge import DAEMONS, Fate
from tests.chaos.lanes import Lane
from tests.chaos.onhost import JobOnHost, until
from tests.chaos.orders import SLURM, Order
from tests.chaos.parts import Part, ends_of_items, parts_of

LANES, WINDOW = 4, 24
_LOOK_S = 0.05
_BESIDE_S = 15.0  # after the death of a daemon, a job that begins may still suffer from it
_ATTACHES = 5
_TRIES = 10
Kill = tuple[str, str, float]
Hits = collections.Counter[str]


@dataclass
class Client:
    """One of the clients that work at the same time.

    Attributes:
        open: What it has, by id.
        read: How many of its words were read.
    """

    lane: Lane
    open: dict[str, Order] = field(default_factory=dict)
    read: int = 0


class Storm:
    """Orders, clients, and what was heard.

    Attributes:
        ended: Of these a client has told the end, or never will.
        doubtful: Their client died, or was cut off, before it said that they were sent.
        count: Calls and items that were sent for certain and are over.
        given_up: No client could send them, however often.
        refusals: What clients said of orders that they could not take, and how often.
    """

    def __init__(
        self, roots: Sequence[Path], runs: Path, new_lane: Callable[[], Lane], orders: Iterator[Order]
    ) -> None:
        self.clients = [Client(new_lane()) for _ in range(LANES)]
        self.ended: list[Order] = []
        self.doubtful: list[Order] = []
        self.count = 0
        self.given_up: list[Order] = []
        self.refusals: collections.Counter[str] = collections.Counter()
        self._roots, self._runs, self._new_lane, self._orders = roots, runs, new_lane, orders
        self._again: list[Order] = []

    def rage(self, jobs: int, may_end: Callable[[], bool], limit_s: float) -> bool:
        """Order at least so many, and up to twice as many until the killers are done; whether all ends came."""
        given, until_s = 0, time.monotonic() + limit_s

        def is_enough() -> bool:
            return given >= jobs and (may_end() or given >= 2 * jobs)

        while time.monotonic() < until_s:
            for client in self.clients:
                self._hear(client)
                if not client.lane.alive():
                    self._replace(client)
                while len(client.open) < WINDOW and (self._again or not is_enough()):
                    if not self._again:
                        self._again.append(next(self._orders))
                        given += len(self._again[0].asks)
                    self._order(client, self._again.pop())
            if is_enough() and not self._again and not any(each.open for each in self.clients):
                return True
            time.sleep(_LOOK_S)
        return False

    def settle(self, is_queued: Callable[[str], bool], limit_s: float) -> None:
        """Follow what has begun although no client said that it was sent."""
        until(lambda: not any(is_queued(order.stem) for order in self.doubtful), limit_s, 1.0)
        client = Client(self._new_lane())
        for order in self.doubtful:
            if any(part.has_begun() for part in self._parts(order)):
                client.open[order.id] = order
                self._attach(client, order)

        def heard() -> bool:
            self._hear(client)
            return not client.open

        until(heard, limit_s, 0.2)
        self.clients.append(client)

    def jobs(self) -> list[JobOnHost]:
        """All that were ordered, as they lie on the hosts."""
        return [job for order in self._all() for job in self._there(order)]

    def open_ids(self) -> list[str]:
        """What no client has told the end of."""
        return [job for client in self.clients for job in client.open]

    def fates(self, kills: list[Kill]) -> list[Fate]:
        """What became of each call and item."""
        hits: dict[str, Hits] = collections.defaultdict(Hits)
        for kind, job, _ in kills:
            hits[job.partition(".")[0]][kind] += 1
        return [fate for order in self._all() for fate in self._fates(order, hits, kills)]

    def _all(self) -> list[Order]:
        waits = [order for client in self.clients for order in client.open.values() if order not in self.doubtful]
        return [*self.ended, *(order for order in self.doubtful if order not in self.ended), *waits]

    def _parts(self, order: Order) -> list[Part]:
        return parts_of(self._roots, order.stem, len(order.asks))

    def _there(self, order: Order) -> list[JobOnHost]:
        folders = [part.folder for part in self._parts(order)] or [self._roots[0] / "jobs" / order.id]
        return [JobOnHost(folder.parents[1], folder.name, self._runs) for folder in folders]

    def _order(self, client: Client, order: Order) -> None:
        order.at = (time.time(), order.at[1])
        client.open[order.id] = order
        words = order.words_for(self._runs)
        _say(client.lane, words.pop("do"), order, **words)

    def _hear(self, client: Client) -> None:
        heard = client.lane.heard
        while client.read < len(heard):
            word = heard[client.read]
            client.read += 1
            order = client.open.get(word["id"])
            if order is None:
                continue
            if word.get("state") == "REFUSED":
                self._refused(client, order, word["error"])
            elif order.again < _ATTACHES and any(_is_unreached(item) for item in word.get("items", ())):
                self._attach_again(client, order)
            elif "state" in word:
                order.words = word
                self._over(client, order)
            elif "sent" in word:
                order.sent, order.ran_on = True, word["host"]

    def _refused(self, client: Client, order: Order, error: dict[str, str]) -> None:
        """The connection broke before anything was sent, or while a client attached."""
        self.refusals[f"{error['type']}: {error['text'].splitlines()[0]}"] += 1
        if not order.sent and order not in self.doubtful:
            del client.open[order.id]
            self._doubt(order)
        elif order.again < _ATTACHES:
            self._attach_again(client, order)
        else:
            self._over(client, order)

    def _attach_again(self, client: Client, order: Order) -> None:
        order.again += 1
        self._attach(client, order)

    def _attach(self, client: Client, order: Order) -> None:
        """Let a client attach to it, by the id of any of its parts."""
        order.orphaned = True
        _say(client.lane, "attach", order, of=next((part.folder.name for part in self._parts(order)), order.id))

    def _doubt(self, order: Order) -> None:
        self.doubtful.append(order)
        if order.tries < _TRIES:
            self._again.append(order.afresh())
        else:
            self.given_up.append(order)

    def _over(self, client: Client, order: Order) -> None:
        del client.open[order.id]
        order.at = (order.at[0], time.time())
        self.ended.append(order)
        self.count += len(order.asks)

    def _replace(self, client: Client) -> None:
        """The client is dead: what it had said counts, and another follows what it had sent."""
        client.lane.close()
        self._hear(client)
        client.lane, client.read = self._new_lane(), 0
        for order in list(client.open.values()):
            if order.sent:
                self._attach(client, order)
            else:
                del client.open[order.id]
                self._doubt(order)

    def _fates(self, order: Order, hits: Mapping[str, Hits], kills: list[Kill]) -> Iterator[Fate]:
        parts, jobs = self._parts(order), self._there(order)
        began, over = order.at
        beside = frozenset(kind for kind, _, when in kills if kind in DAEMONS and began - _BESIDE_S <= when <= over)
        ends = ends_of_items(parts) if order.is_map else {}
        hit = sum((hits[job.id] for job in jobs), Hits())
        for index, ask in enumerate(order.asks):
            name, (job, *_) = f"{order.id}#{index}" if order.is_map else order.id, jobs
            lines = ends.get(index, [])
            places = [part.host for part, _ in lines] or [part.host for part in parts if index in part.items]
            yield Fate(
                name, ask, order.place(), SLURM in (places or order.ran_on or order.host),
                order not in self.doubtful, order.told(index),
                [line for _, line in lines] if order.is_map else job.finals(),
                JobOnHost(self._roots[0], name, self._runs).runs(), 1 if order.is_map else len(job.attempts()),
                hit, beside, order.orphaned,
            )  # fmt: skip


def _is_unreached(item: Mapping[str, Any]) -> bool:
    """Whether a client says that it cannot reach the host of an item, which may go on there: another one may."""
    return item.get("error", {}).get("type") in ("HostError", "Unreachable")


def _say(lane: Lane, do: str, order: Order, **more: object) -> None:
    with contextlib.suppress(BrokenPipeError, ValueError):  # it was killed a moment ago: its successor has the order
        lane.order(do, order.id, order.host, **more)
