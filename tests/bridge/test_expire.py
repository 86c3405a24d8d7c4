"""Jobs are kept as long as their host says, and no longer."""

from __future__ import annotations

import os
import time

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
