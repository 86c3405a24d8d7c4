"""A machine on paper, on which every user plans for themselves whose job comes next."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from clusterfn.bridge.queue import lease_names, plan
from clusterfn.bridge.queue.lease_names import HeldNames
from clusterfn.bridge.queue.machine import ANY, Demand, MachineResources, UserLimits, Waiting
from clusterfn.bridge.queue.tickets import Ticket

NONE = UserLimits(None, None, None, None)


def demand(gpus: int, cores: int) -> Demand:
    return Demand(gpus, cores, 0)


CORE, GPU = demand(0, 1), demand(1, 1)


class User:
    """One user: tickets, and the names of those that are next.

    Attributes:
        begun: (since, until, demand) of each job that has begun.
    """

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.tickets: list[Ticket] = []
        self.waiting: set[Waiting] = set()
        self.begun: list[tuple[float, float, Demand]] = []

    def used(self, since: float, until: float) -> float:
        """Seconds times cores, or GPUs for who asks for some."""
        each = ((asked.gpus or asked.cores, min(end, until) - max(begin, since)) for begin, end, asked in self.begun)
        return sum(amount * seconds for amount, seconds in each if seconds > 0)


class Paper:
    """The machine and its users."""

    def __init__(self, cores: int = 4, cards: str = "") -> None:
        self.cores, self.cards = cores, cards
        self.now = 1000.0
        self.users: list[User] = []
        self.running: list[tuple[float, str, User, str, str]] = []  # until, name, user, job, cards
        self.rng = random.Random(7)
        self._number = 0

    def user(self) -> User:
        self.users.append(User(1001 + len(self.users)))
        return self.users[-1]

    def submit(self, user: User, count: int, asked: Demand, length: float, priority: int = 0) -> list[str]:
        jobs = []
        for _ in range(count):
            self._number += 1
            ms = int(self.now * 1000) + self._number
            facts: dict[str, Any] = dict.fromkeys(Ticket._fields)
            facts.update(job=f"{self._number:016x}", asked=asked, limits=NONE, ms=ms, kind=ANY, timeout_s=length)
            user.tickets.append(Ticket(**{**facts, "order": (-priority, 1, ms)}))
            jobs.append(facts["job"])
        user.tickets.sort(key=lambda ticket: ticket.order)
        return jobs

    def _names(self, user: User) -> dict[str, int]:
        until_s = int(self.now) + lease_names.VALID_S
        names = {lease_names.wait(shown, until_s): each.uid for each in self.users for shown in each.waiting}
        names.update({name: owner.uid for _, name, owner, _, _ in self.running})
        return names

    def _look(self, user: User) -> bool:
        """Let one user's spooler look once; return whether that changed anything."""
        seen = HeldNames(self._names(user), self.now)
        free = [card for card in self.cards if not any(card in held for *_, held in self.running)]
        view = plan.QueueView(
            MachineResources(self.cores, 10**6, 10**6, free), seen, user.uid, lambda kind: list(self.cards), {}, {},
            now_ms=int(self.now * 1000),
        )  # fmt: skip
        made = plan.plan_starts(user.tickets, view)
        for ticket in made.start:
            self._start(user, ticket, made.gpus[ticket.job])
        before, user.waiting = user.waiting, set()
        for ticket in made.named:
            if ticket in user.tickets:
                ms, more = made.since_ms[ticket.job], made.further.get(ticket.job, 0)
                user.waiting.add(Waiting(ms, user.uid, ticket.job, ticket.asked, ANY, more))
        return bool(made.start) or before != user.waiting

    def _start(self, user: User, ticket: Ticket, free: list[str]) -> None:
        user.tickets.remove(ticket)
        until, name = self.now + ticket.timeout_s, lease_names.run(user.uid, ticket.job, ticket.asked)
        held = "".join(free[: ticket.asked.gpus])
        assert len(held) == ticket.asked.gpus
        self.running.append((until, name, user, ticket.job, held))
        assert sum(int(name.split("/")[4]) for _, name, *_ in self.running) <= self.cores
        user.begun.append((self.now, until, ticket.asked))

    def settle(self) -> None:
        """Let all look until nothing changes."""
        for _ in range(200):
            order = [user for user in self.users if user.tickets or user.waiting]
            self.rng.shuffle(order)
            if not any([self._look(user) for user in order]):
                return
        raise AssertionError("they do not agree")

    def run(self, until: float = float("inf"), done: Callable[[], bool] = lambda: False) -> None:
        """Go on until then, or until nothing is left."""
        self.settle()
        while self.running and not done():
            end = min(self.running)[0]
            if end > until:
                break
            self.now = end
            for each in [each for each in self.running if each[0] == end]:
                self.running.remove(each)
            self.settle()
        else:
            return
        self.now = until
