"""A function that stands still, as its user meets it: ended with its stack, or asked where it is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import clusterfn
from clusterfn import ClusterfnError, cluster
from tests.e2e.conftest import ON_SLURM, Hosts
from tests.fixtures.standing import waits_for
from tests.waiting import until


@pytest.mark.lab
@ON_SLURM
def test_a_running_job_says_where_it_is_and_goes_on(hosts: Hosts, host: str):
    gate = hosts.root / f"gate-{host}"
    job = cluster(host=host)(waits_for).submit(str(gate))
    until(lambda: job.state == "RUNNING")
    attached = clusterfn.attach(job.id)  # on a busy machine the answer may come from between two naps, or from before
    stack = until(lambda: shown if "time.sleep(0.05)  # here" in (shown := attached.stack()) else "")
    gate.parent.mkdir(exist_ok=True)
    gate.touch()

    assert 'File "tests/fixtures/standing.py", line ' in stack, "not as it is named here"
    assert job.result(150) == "went on"
    until(lambda: not list((hosts.root / "jobs" / job.id).glob("stack*")))


def test_who_has_ended_is_nowhere(here: Path):
    job = cluster(time.sleep).submit(0)
    job.result(150)

    with pytest.raises(ClusterfnError, match="there are no stacks of job .* it is RETURNED"):
        job.stack()

    until(lambda: not (here / "jobs" / job.id / "stack").exists())
