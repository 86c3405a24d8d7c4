"""Whose job comes next where several users wait: a machine on paper, on which every user plans for themselves."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.layout import HOLDS
from clusterfn.bridge.queue import lease_names, machine, plan, tickets, usage
from clusterfn.bridge.queue.lease_names import HeldNames
from clusterfn.bridge.queue.machine import ANY, Demand, MachineResources, Usage, Used, UserLimits, Waiting
from clusterfn.bridge.queue.tickets import Ticket

pytestmark = pytest.mark.skipif(not hasattr(os, "uname"), reason="hosts are no Windows machines")

NONE = UserLimits(None, None, None, None)
CORE, GPU = Demand(0, 1, 0), Demand(1, 1, 0)


class User:
    """One user: tickets, the names of those that are next, and a journal.

    Attributes:
        is_old: The bridge neither publishes nor understands what was used.
        ended: (since, until, demand) of each job that has begun.
    """

    def __init__(self, uid: int, root: Path, is_old: bool = False) -> None:
        self.uid, self.root, self.is_old = uid, root, is_old
        self.tickets: list[Ticket] = []
        self.names: set[str] = set()
        self.begun: list[tuple[float, float, Demand]] = []
        self.account = usage.UsageAccount(str(root))
        self.published: Usage | None = None
        Path(machine.folder(str(root))).mkdir(parents=True)

    def note(self, event: str, job: str, when: float, asked: Demand) -> None:
        with (Path(machine.folder(str(self.root))) / HOLDS).open("a") as file:
            line = {"event": event, "job": job, "t": when, "asked": dict(asked._asdict()), "cards": []}
            file.write(json.dumps(line) + "\n")

    def used(self, since: float, until: float) -> float:
        """Seconds times cores, or GPUs for who asks for some."""
        each = ((asked.gpus or asked.cores, min(end, until) - max(begin, since)) for begin, end, asked in self.begun)
        return sum(amount * seconds for amount, seconds in each if seconds > 0)


class Paper:
    """The machine and its users."""

    def __init__(self, folder: Path, cores: int = 4, cards: str = "") -> None:
        self.folder, self.cores, self.cards = folder, cores, cards
        self.now = 1000.0
        self.users: list[User] = []
        self.running: list[tuple[float, str, User, str, str]] = []  # until, name, user, job, cards
        self.rng = random.Random(7)
        self._number = 0

    def user(self, is_old: bool = False) -> User:
        uid = 1001 + len(self.users)
        self.users.append(User(uid, self.folder / str(uid), is_old))
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
        names = {name: each.uid for each in self.users for name in each.names}
        names.update({name: owner.uid for _, name, owner, _, _ in self.running})
        if user.is_old:
            return {re.sub("~[0-9,]+", "", name): uid for name, uid in names.items()}
        return names

    def _look(self, user: User) -> bool:
        """Let one user's spooler look once; return whether that changed anything."""
        seen = HeldNames(self._names(user), self.now)
        running = {job.job: job.asked for job in seen.running if job.uid == user.uid}
        size = (len(self.cards), self.cores)
        user.published = usage.published_usage(user.account, running, size, self.now, user.published)
        free = [card for card in self.cards if not any(card in held for *_, held in self.running)]
        view = plan.QueueView(
            MachineResources(self.cores, 10**6, 10**6, free), seen, user.uid, lambda kind: list(self.cards), {}, {},
            usage=user.published,
        )  # fmt: skip
        made = plan.plan_starts(user.tickets, view)
        for ticket in made.start:
            self._start(user, ticket, made.gpus[ticket.job])
        before, user.names = user.names, set()
        for ticket in made.named:
            if ticket in user.tickets:
                (used, ms), further = made.places[ticket.job], made.further.get(ticket.job, (0, 0))
                told = None if user.is_old else Used(used, *further)
                shown = Waiting(ms, user.uid, ticket.job, ticket.asked, ANY, told)
                user.names.add(lease_names.wait(shown, 1 << 40))
        return bool(made.start) or before != user.names

    def _start(self, user: User, ticket: Ticket, free: list[str]) -> None:
        user.tickets.remove(ticket)
        until, name = self.now + ticket.timeout_s, lease_names.run(user.uid, ticket.job, ticket.asked)
        held = "".join(free[: ticket.asked.gpus])
        assert len(held) == ticket.asked.gpus
        self.running.append((until, name, user, ticket.job, held))
        assert sum(int(name.split("/")[4]) for _, name, *_ in self.running) <= self.cores
        user.begun.append((self.now, until, ticket.asked))
        user.note(tickets.TAKEN, ticket.job, self.now, ticket.asked)

    def settle(self) -> None:
        """Let all look until nothing changes."""
        for _ in range(200):
            order = [user for user in self.users if user.tickets or user.names]
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
                each[2].note(tickets.RELEASED, each[3], self.now, CORE)
            self.settle()
        else:
            return
        self.now = until


def ratio(users: Iterable[User], since: float, until: float) -> float:
    amounts = [user.used(since, until) for user in users]
    return max(amounts) / max(min(amounts), 1e-9)


@pytest.mark.parametrize(("asked", "cards"), [(CORE, ""), (GPU, "abcd")])
def test_one_job_beside_many_starts_within_two_job_lengths_and_the_others_share_alike(tmp_path, asked, cards):
    paper = Paper(tmp_path, cards=cards)
    many, some, one = paper.user(), paper.user(), paper.user()
    began = paper.now
    paper.submit(many, 90, asked, 10.0)
    paper.submit(some, 50, asked, 10.0)
    paper.run(began + 15)
    sent = paper.now
    paper.submit(one, 1, asked, 10.0)

    paper.run(began + 100)

    assert one.begun[0][0] - sent <= 20
    assert ratio([many, some], began, began + 100) <= 1.1
    paper.run()
    assert [len(user.begun) for user in paper.users] == [90, 50, 1]


def test_who_has_used_nothing_comes_before_who_has_used_the_machine_all_night_and_is_not_flooded(tmp_path):
    paper = Paper(tmp_path, cores=2)
    owl, lark = paper.user(), paper.user()
    paper.submit(owl, 200, CORE, 600.0)
    paper.run(paper.now + 8 * 3600)
    paper.submit(lark, 300, CORE, 600.0)
    morning = paper.now

    paper.run(morning + 1200)
    assert lark.begun[0][0] - morning <= 600
    paper.run(morning + 4 * 3600)

    later = (morning + 2.5 * 3600, morning + 4 * 3600)
    assert ratio([owl, lark], *later) <= 1.25  # one half-life later both share alike


def test_who_had_all_of_the_machine_and_was_away_for_a_night_shares_alike_from_the_first_job(tmp_path):
    paper = Paper(tmp_path, cores=2)
    ada, bob = paper.user(), paper.user()
    paper.submit(ada, 96, CORE, 600.0)
    paper.run()
    paper.now += 8 * 3600
    began = paper.now
    paper.submit(bob, 40, CORE, 60.0)
    paper.submit(ada, 40, CORE, 60.0)

    paper.run(began + 600)

    assert ada.begun[96][0] - began <= 60
    assert ratio([ada, bob], began, began + 600) <= 1.1


@pytest.mark.parametrize(("asked", "large", "cards"), [(CORE, Demand(0, 4, 0), ""), (GPU, Demand(4, 1, 0), "abcd")])
def test_a_large_job_is_starved_by_no_small_ones_of_others(tmp_path, asked, large, cards):
    paper = Paper(tmp_path, cards=cards)
    small, second, big = paper.user(), paper.user(), paper.user()
    paper.submit(small, 100, asked, 10.0)
    paper.submit(second, 100, asked, 7.0)
    paper.run(paper.now + 12)
    sent = paper.now
    paper.submit(big, 3, large, 10.0)

    paper.run(done=lambda: len(big.begun) == 3)

    assert big.begun[0][0] - sent <= 20
    assert big.begun[2][0] - sent <= 200


def test_priority_orders_ones_own_jobs_and_no_others(tmp_path):
    paper = Paper(tmp_path, cores=1)
    ada, bob = paper.user(), paper.user()
    paper.submit(ada, 1, CORE, 10.0)
    paper.run(paper.now + 1)
    paper.submit(bob, 2, CORE, 10.0)
    paper.submit(ada, 1, CORE, 20.0)
    paper.submit(ada, 1, CORE, 30.0, priority=5)

    paper.run()

    assert [until - since for since, until, _ in ada.begun] == [10.0, 30.0, 20.0]
    assert bob.begun[0][0] == ada.begun[0][1], "another user's priority keeps nobody waiting"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("with_old", [False, True])
def test_whatever_is_asked_for_and_whichever_bridges_there_are_the_users_agree_and_all_jobs_run(
    tmp_path, seed, with_old
):
    paper, rng = Paper(tmp_path, cards="ab"), random.Random(seed)
    paper.rng = random.Random(seed + 100)
    for number in range(4):
        user = paper.user(is_old=with_old and number == 1)
        for _ in range(8):
            asked = Demand(rng.choice([0, 0, 1, 2]), rng.choice([1, 1, 2, 4]), 0)
            paper.submit(user, 1, asked, float(rng.choice([3, 10, 40])), rng.choice([0, 0, 3]))
    for _ in range(3):
        paper.run(paper.now + 20)
        paper.submit(rng.choice(paper.users), 3, CORE, 5.0)

    paper.run()

    assert not any(user.tickets for user in paper.users), "jobs wait, and nothing runs"


def test_beside_an_older_bridge_the_oldest_job_comes_first_as_that_expects(tmp_path):
    paper = Paper(tmp_path, cores=1)
    old, first, second = paper.user(is_old=True), paper.user(), paper.user()
    paper.submit(first, 1, CORE, 10.0)
    paper.run(paper.now + 1)
    for user in (first, old, second):
        paper.submit(user, 1, CORE, 10.0)

    paper.run()

    assert first.begun[1][0] < old.begun[0][0] < second.begun[0][0]
