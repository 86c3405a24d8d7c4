"""What one user has used, as the journal says it: ends that it lacks, another journal in its place."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clusterfn.bridge.layout import HOLDS
from clusterfn.bridge.queue import machine
from clusterfn.bridge.queue.machine import Demand, Usage
from clusterfn.bridge.queue.usage import UsageAccount, published_usage

pytestmark = pytest.mark.skipif(not hasattr(os, "uname"), reason="hosts are no Windows machines")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = Path(machine.folder(str(tmp_path))) / HOLDS
    path.parent.mkdir(parents=True)
    return path


def lines(job: str, **times: float) -> str:
    """Of a job with one core."""
    facts = {"job": job, "asked": Demand(0, 1, 0)._asdict(), "cards": []}
    return "".join(json.dumps({"event": event, "t": when, **facts}) + "\n" for event, when in times.items())


def test_a_job_that_began_after_the_running_ones_were_listed_is_not_dead(tmp_path: Path, journal: Path):
    account = UsageAccount(str(tmp_path))
    journal.write_text(lines("a", taken=1000.0))
    account.look({}, 1002.0)
    with journal.open("a") as file:
        file.write(lines("a", released=1100.0))

    assert account.look({}, 1100.0)[1] == pytest.approx(100, rel=0.01)


def test_a_job_that_died_with_its_supervisor_counts_until_it_was_seen_last(tmp_path: Path, journal: Path):
    account = UsageAccount(str(tmp_path))
    journal.write_text(lines("a", taken=1000.0))
    account.look({"a": Demand(0, 1, 0)}, 1050.0)

    assert account.look({}, 1100.0)[1] == pytest.approx(50, rel=0.01)


def test_a_journal_that_has_begun_again_is_read_from_its_beginning(tmp_path: Path, journal: Path):
    account = UsageAccount(str(tmp_path))
    journal.write_text(lines("a", taken=1000.0, released=1100.0))
    account.look({}, 1100.0)
    journal.rename(journal.with_suffix(".1"))
    journal.write_text(lines("b", taken=1100.0, released=1200.0) + lines("c", taken=1200.0, released=1300.0))

    assert account.look({}, 1300.0)[1] == pytest.approx(300, rel=0.02)


@pytest.mark.parametrize(("cores_ms", "stays"), [(99_800, True), (90_000, False)])
def test_what_is_published_is_put_right_only_if_it_is_wrong_by_much(
    tmp_path: Path, journal: Path, cores_ms: int, stays: bool
):
    journal.write_text(lines("a", taken=1000.0, released=1100.0))
    before = Usage(0, cores_ms, 0, 1)

    assert (published_usage(UsageAccount(str(tmp_path)), {}, (0, 1), 1100.0, before) is before) is stays
