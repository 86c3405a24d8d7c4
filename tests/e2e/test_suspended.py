"""A job that SLURM suspends is SUSPENDED, and goes on later with all the time that it had; its cancel is a cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import clusterfn
from tests.e2e.conftest import MINOR
from tests.lab import Lab
from tests.lab.own_slurm import OwnSlurm
from tests.waiting import WAIT_S, stays, until

pytestmark = pytest.mark.lab
PAUSE_S = 12.0  # also the time limit, within which a busy machine must suspend it


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[OwnSlurm]:
    with lab.own_slurm({"MinJobAge": 2, "SelectTypeParameters": "CR_Core"}, nodes=1) as own:
        yield own


@pytest.fixture
def call(site: OwnSlurm, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """Submit a call that runs until `end` exists, and wait until it runs."""
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(site.clusterfn_yml(tmp_path / "clusterfn.yml", lab.python(MINOR))))
    end = str(site.root.with_name(f"{site.root.name}.{tmp_path.name}.end"))

    def waits(end):
        import os
        import time

        while not os.path.exists(end):
            time.sleep(0.1)
        return "returned"

    def submit(**options):
        job = clusterfn.cluster(**options)(waits).submit(end)
        until(lambda: job.state == "RUNNING")
        return job

    submit.end = lambda: site.ssh(f"touch {end}")
    yield submit
    site.ssh(f"rm -f {end}")


def number_of(site: OwnSlurm) -> str:
    """The job that runs or is suspended."""
    return site.run("squeue", "--noheader", "--states=R,S", "--format=%i").stdout.split()[-1]


def test_a_suspended_job_has_all_of_its_time(ask, site, call):
    job = call(time=f"{PAUSE_S:g}s")
    number = number_of(site)
    assert site.run("scontrol", "suspend", number).returncode == 0
    until(lambda: job.state == "SUSPENDED")
    seen = job.status
    listed = ask("jobs")
    stays(lambda: job.state == "SUSPENDED", PAUSE_S)
    call.end()
    site.run("scontrol", "resume", number)

    assert seen == "SUSPENDED (the scheduler has suspended the job; this time does not count)"
    assert "SUSPENDED" in listed.stdout
    assert job.result(WAIT_S) == "returned"
    assert job.usage["wall_s"] < PAUSE_S


def test_a_job_that_goes_on_says_so_and_the_cancel_of_a_suspended_one_is_a_cancel(site, call):
    job, number = call(), number_of(site)
    site.run("scontrol", "suspend", number)
    until(lambda: job.state == "SUSPENDED")
    stays(lambda: job.state == "SUSPENDED", 5.0)
    site.run("scontrol", "resume", number)
    until(lambda: job.status.startswith("RUNNING (it was suspended for "))
    site.run("scontrol", "suspend", number)
    until(lambda: job.state == "SUSPENDED")

    job.stop()

    with pytest.raises(clusterfn.Cancelled):
        job.result(WAIT_S)
