"""Jobs are kept as long as their host says, and no longer."""

from __future__ import annotations

import os
import time

import pytest

from clusterfn.bridge.supervisor.expire import once_a_day
from clusterfn.bridge.supervisor.job import Job
from tests.bridge.host import Bench

ONE = "def f():\n    return 1\n"
DAY_S = 86400


def age(path, days: float) -> None:
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))


def aged_job(bench: Bench, days: float, **spec):
    job, _ = bench.run(ONE, **{"keep_days": 3.0, **spec})
    age(job.attempt / "outcome.json", days)
    return job


def test_a_job_that_was_due_when_somebody_looked_last_is_removed_with_the_next(bench: Bench):
    old, young = aged_job(bench, 4.3), aged_job(bench, 4.0)
    age(bench.root / "expired", 1.1)

    bench.run(ONE)

    assert not old.folder.exists()
    assert young.folder.exists()


def test_each_job_is_kept_as_long_as_it_says_itself(bench: Bench):
    """Hosts that share a home share the root, and each has a `keep:` of its own."""
    long, short = aged_job(bench, 100, keep_days=365.0), aged_job(bench, 4.3, keep_days=1.0)
    age(bench.root / "expired", 1.1)

    bench.run(ONE, keep_days=1.0)

    assert long.folder.exists()
    assert not short.folder.exists()


@pytest.mark.parametrize("ahead_days", [20, 20_000])
def test_a_clock_that_was_ahead_while_one_job_ended_removes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ahead_days: int
):
    young, last = aged_job(bench, 0), bench.job(ONE)
    age(bench.root / "expired", 1.1)
    right = time.time()

    for days in (ahead_days, 0, 1.1):
        monkeypatch.setattr(time, "time", lambda now=right + days * DAY_S: now)
        monkeypatch.setattr(os, "utime", lambda path, times=None, utime=os.utime: utime(path, (time.time(),) * 2))
        once_a_day(Job(str(last.folder)))

    assert young.folder.exists()


def test_a_clock_that_was_ahead_stops_no_later_look(bench: Bench):
    old = aged_job(bench, 8)
    age(bench.root / "expired", -20_000)

    bench.run(ONE)
    assert old.folder.exists()
    age(bench.root / "expired", 1.1)
    bench.run(ONE)

    assert not old.folder.exists()


def test_a_job_without_a_final_outcome_is_never_removed(bench: Bench):
    waiting = bench.job(ONE)
    age(waiting.folder, 100)

    bench.run(ONE, keep_days=3.0)

    assert waiting.folder.exists()


def test_a_root_is_looked_through_once_a_day(bench: Bench):
    old = aged_job(bench, 4.3)

    bench.run(ONE, keep_days=3.0)

    assert old.folder.exists()


@pytest.mark.parametrize("damage", ["", "garbage", "[]", "null"])
def test_a_damaged_job_does_not_keep_the_others(bench: Bench, damage):
    old, damaged = aged_job(bench, 4.3), aged_job(bench, 4.3)
    (damaged.attempt / "outcome.json").write_text(damage)
    age(damaged.attempt / "outcome.json", 4.3)
    first = bench.root / "jobs" / ("0" * 16)
    damaged.folder.rename(first)
    age(bench.root / "expired", 1.1)

    _, outcome = bench.run(ONE, keep_days=3.0)

    assert outcome["kind"] == "returned"
    assert not old.folder.exists()
    assert first.exists()


def test_what_was_half_removed_goes_and_what_is_half_uploaded_stays(bench: Bench):
    old, sent = aged_job(bench, 4.3), aged_job(bench, 4.3)
    old.folder.rename(old.folder.with_name(".expired-" + old.id))
    part = sent.folder.rename(sent.folder.with_name(sent.id + ".part-7-1"))
    age(bench.root / "expired", 1.1)

    bench.run(ONE, keep_days=3.0)

    assert part.exists()
    assert list((bench.root / "jobs").glob(".expired-*")) == []
