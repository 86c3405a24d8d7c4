"""Jobs are kept as long as their host says, and no longer."""

from __future__ import annotations

import os
import time

import pytest

from tests.bridge.host import Bench

ONE = "def f():\n    return 1\n"
DAY_S = 86400


def age(path, days: float) -> None:
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))


def aged_job(bench: Bench, days: float):
    job, _ = bench.run(ONE)
    age(job.attempt / "outcome.json", days)
    return job


def test_a_job_that_ended_longer_ago_than_keep_is_removed_with_the_next(bench: Bench):
    old, young = aged_job(bench, 3.1), aged_job(bench, 2.9)
    age(bench.root / "expired", 1.1)

    bench.run(ONE, keep_days=3.0)

    assert not old.folder.exists()
    assert young.folder.exists()


def test_a_job_without_a_final_outcome_is_never_removed(bench: Bench):
    waiting = bench.job(ONE)
    age(waiting.folder, 100)

    bench.run(ONE, keep_days=3.0)

    assert waiting.folder.exists()


def test_a_root_is_looked_through_once_a_day(bench: Bench):
    old = aged_job(bench, 3.1)

    bench.run(ONE, keep_days=3.0)

    assert old.folder.exists()


@pytest.mark.parametrize("damage", ["", "garbage", "[]", "null"])
def test_a_damaged_job_does_not_keep_the_others(bench: Bench, damage):
    old, damaged = aged_job(bench, 3.1), aged_job(bench, 3.1)
    (damaged.attempt / "outcome.json").write_text(damage)
    age(damaged.attempt / "outcome.json", 3.1)
    first = bench.root / "jobs" / ("0" * 16)
    damaged.folder.rename(first)
    age(bench.root / "expired", 1.1)

    _, outcome = bench.run(ONE, keep_days=3.0)

    assert outcome["kind"] == "returned"
    assert not old.folder.exists()
    assert first.exists()


def test_what_was_half_removed_goes_and_what_is_half_uploaded_stays(bench: Bench):
    old, sent = aged_job(bench, 3.1), aged_job(bench, 3.1)
    old.folder.rename(old.folder.with_name(".expired-" + old.id))
    part = sent.folder.rename(sent.folder.with_name(sent.id + ".part-7-1"))
    age(bench.root / "expired", 1.1)

    bench.run(ONE, keep_days=3.0)

    assert part.exists()
    assert list((bench.root / "jobs").glob(".expired-*")) == []
