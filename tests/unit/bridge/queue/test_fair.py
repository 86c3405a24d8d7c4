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


@pytest.mark.parametrize(("asked", "large", "cards"), [(CORE, demand(0, 4), ""), (GPU, demand(4, 1), "abcd")])
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
def test_whatever_is_asked_for_the_users_agree_and_all_jobs_run(tmp_path, seed):
    paper, rng = Paper(tmp_path, cards="ab"), random.Random(seed)
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
