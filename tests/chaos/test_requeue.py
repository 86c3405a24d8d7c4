"""SLURM starts a job again: the second attempt fences the first, and what is final stays final."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.chaos.inprocess import Here, Sent
from tests.chaos.onhost import until

pytestmark = pytest.mark.lab


def kinds(sent: Sent) -> list[str]:
    return [json.loads(sent.there.outcomes()[name])["kind"] for name in sorted(sent.there.outcomes())]


@pytest.fixture
def by_hand() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Scripts started by hand, as on a second node."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.wait(150)


def start_again(sent: Sent) -> subprocess.Popen[bytes]:
    """As SLURM does after a requeue: the same job number, one restart more, while the old processes live."""
    claim = (sent.there.folder / "claim").read_text()
    line = f"cd {sent.there.folder} && SLURM_JOB_ID={claim} SLURM_RESTART_COUNT=1 /bin/sh job.sh >>scheduler.log 2>&1"
    argv = ["ssh", "-F", str(sent.world.lab.ssh_config), "-o", "BatchMode=yes", "slurm-second", line]
    return subprocess.Popen(argv)


@pytest.mark.fault("18")
def test_second_attempt_fences_the_first_that_still_lives(here: Here, by_hand: list[subprocess.Popen[bytes]]) -> None:
    """As after a node was lost that had lost its cable only."""
    sent = here.submit("restarted", "slurm", seconds=600)
    sent.await_at("function")
    first = sent.there.by_event()
    by_hand.append(start_again(sent))
    assert sent.job.result(150) == 2, sent.there.history()
    assert kinds(sent) == ["superseded", "returned"]
    told = "attempt 1 left no result; the scheduler has restarted the job (2)"
    assert any(told in status for status in sent.states), sent.states
    assert until(lambda: not os.path.exists(f"/proc/{first['worker']}"), 150), "a fenced attempt ends its tree"
    sent.stands(runs=2)
