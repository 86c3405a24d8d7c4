"""Whose job comes next where several users wait: a machine on paper, on which every user plans for themselves."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pytest

from tests.fakes.paper_machine import CORE, GPU, Paper, User, demand

pytestmark = pytest.mark.skipif(not hasattr(os, "uname"), reason="hosts are no Windows machines")


def ratio(users: Iterable[User], since: float, until: float) -> float:
    amounts = [user.used(since, until) for user in users]
    return max(amounts) / max(min(amounts), 1e-9)


@pytest.mark.parametrize(("asked", "cards"), [(CORE, ""), (GPU, "abcd")])
def test_one_job_beside_many_starts_within_two_job_lengths_and_the_others_share_alike(asked, cards):
    paper = Paper(cards=cards)
    many, some, one = paper.user(), paper.user(), paper.user()
    began = paper.now
    paper.submit(many, 90, asked, 10.0)
    paper.submit(some, 50, asked, 10.0)
    paper.run(began + 15)
    sent = paper.now
    paper.submit(one, 1, asked, 10.0)

    paper.run(began + 100)

    assert one.begun[0][0] - sent <= 20
    assert ratio([many, some], began + 10, began + 100) <= 1.1
    paper.run()
    assert [len(user.begun) for user in paper.users] == [90, 50, 1]


def test_who_held_the_machine_all_night_and_who_comes_in_the_morning_share_alike_from_the_first_end_of_a_job():
    paper = Paper(cores=2)
    owl, lark = paper.user(), paper.user()
    paper.submit(owl, 200, CORE, 600.0)
    paper.run(paper.now + 8 * 3600)
    paper.submit(lark, 300, CORE, 600.0)
    morning = paper.now

    paper.run(morning + 4 * 3600)

    assert lark.begun[0][0] - morning <= 600
    assert ratio([owl, lark], morning + 600, morning + 4 * 3600) <= 1.1


def test_gpus_that_become_free_at_once_go_to_two_users_alike():
    paper = Paper(cores=32, cards="abcdefgh")
    owner, many, some = paper.user(), paper.user(), paper.user()
    paper.submit(owner, 1, demand(8, 1), 10.0)
    paper.run(paper.now + 1)
    paper.submit(many, 30, GPU, 50.0)
    paper.submit(some, 30, GPU, 50.0)

    paper.run(paper.now + 20)

    assert [len(user.begun) for user in (many, some)] == [4, 4]


@pytest.mark.parametrize(("asked", "large", "cards"), [(CORE, demand(0, 4), ""), (GPU, demand(4, 1), "abcd")])
def test_a_large_job_is_starved_by_no_small_ones_of_others(asked, large, cards):
    paper = Paper(cards=cards)
    small, second, big = paper.user(), paper.user(), paper.user()
    paper.submit(small, 100, asked, 10.0)
    paper.submit(second, 100, asked, 7.0)
    paper.run(paper.now + 12)
    sent = paper.now
    paper.submit(big, 3, large, 10.0)

    paper.run(done=lambda: len(big.begun) == 3)

    assert big.begun[0][0] - sent <= 20
    assert big.begun[2][0] - sent <= 200


def test_priority_orders_ones_own_jobs_and_no_others():
    paper = Paper(cores=1)
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
def test_whatever_is_asked_for_the_users_agree_and_all_jobs_run(seed):
    paper, rng = Paper(cards="ab"), random.Random(seed)
    paper.rng = random.Random(seed + 100)
    for _ in range(4):
        user = paper.user()
        for _ in range(8):
            asked = demand(rng.choice([0, 0, 1, 2]), rng.choice([1, 1, 2, 4]))
            paper.submit(user, 1, asked, float(rng.choice([3, 10, 40])), rng.choice([0, 0, 3]))
    for _ in range(3):
        paper.run(paper.now + 20)
        paper.submit(rng.choice(paper.users), 3, CORE, 5.0)

    paper.run()

    assert not any(user.tickets for user in paper.users), "jobs wait, and nothing runs"
