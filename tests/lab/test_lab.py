"""The lab is what it says it is. System ssh and SLURM's own commands only: without these no other lab test counts."""

from __future__ import annotations

import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, accounts, layout, teardown, totp
from tests.lab.processes import State

pytestmark = pytest.mark.lab
CRASH = """
import os
from tests.lab import Lab
with Lab().newcomer() as newcomer:
    print(newcomer.name, flush=True)
    os.kill(os.getpid(), 9)
"""


def submit(lab: Lab, options: str, script: str) -> str:
    """sbatch as cfbash on the slurm host; the job's number."""
    done = lab.ssh("slurm", f"sbatch --parsable {options}", stdin=f"#!/bin/sh\n{script}\n".encode())
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


@pytest.fixture
def output(lab: Lab) -> Iterator[Path]:
    """A file that jobs of cfbash may write."""
    path = lab.home("bash") / "test_lab.out"
    path.unlink(missing_ok=True)
    yield path
    path.unlink(missing_ok=True)


def test_nothing_of_a_newcomer_is_left(lab: Lab) -> None:
    with lab.newcomer() as newcomer:
        argv = ["setsid", "--fork", "sleep", "60"]
        subprocess.run(argv, user=newcomer.uid, cwd="/", check=True, timeout=150)
        assert accounts.processes_of({newcomer.uid})
    assert accounts.processes_of({newcomer.uid}) == []
    assert not newcomer.home.exists()
    assert newcomer.name not in {found.pw_name for found in pwd.getpwall()}


def test_a_newcomer_whom_a_killed_test_left_is_removed_by_the_next(lab: Lab) -> None:
    left = subprocess.run([sys.executable, "-c", CRASH], stdout=subprocess.PIPE, text=True, timeout=150, check=False)
    assert left.returncode == -signal.SIGKILL
    assert pwd.getpwnam(left.stdout.strip())
    with lab.newcomer():
        assert left.stdout.strip() not in {found.pw_name for found in pwd.getpwall()}


@pytest.mark.long
def test_a_high_job_puts_a_low_one_back_into_the_queue(lab: Lab, output: Path) -> None:
    low = submit(lab, f"-p low -w n1 --exclusive --mem=100 --open-mode=append -o {output}", "sleep 3")
    lab.slurm.wait_job(low, "RUNNING", timeout_s=150)
    high = submit(lab, "-p high -w n1 --exclusive --mem=100", "true")
    lab.slurm.wait_job(high, "COMPLETED", timeout_s=150)
    lab.slurm.wait_job(low, "COMPLETED", timeout_s=150)
    assert "DUE TO PREEMPTION" in output.read_text()


@pytest.mark.long
def test_a_killed_slurmd_is_noticed_and_its_job_queued_again(lab: Lab) -> None:
    job = submit(lab, "-w n2 --mem=100", "sleep 60")
    lab.slurm.wait_job(job, "RUNNING")
    lab.slurmd("n2").kill()
    try:
        assert lab.slurm.wait_job(job, "PENDING", timeout_s=150) == "PENDING"
        assert lab.slurm.node_state("n2").startswith("down")
    finally:
        lab.slurm.heal()
        lab.slurm.run("scancel", job)


@pytest.mark.long
def test_a_running_job_survives_slurmctld(lab: Lab) -> None:
    job = submit(lab, "--mem=100", "sleep 5")
    lab.slurm.wait_job(job, "RUNNING")
    lab.slurmctld.kill()
    lab.slurm.heal()
    assert lab.slurm.wait_job(job, "COMPLETED") == "COMPLETED"


def test_down_would_remove_own_things_only(lab: Lab) -> None:
    words = [line.split(maxsplit=1) for line in teardown.removals(State.load())]
    places = {what for kind, what in words if kind in ("folder", "mount")}
    assert {what[:2] for kind, what in words if kind == "account"} == {"cf"}
    elsewhere = ("/run/sshd", str(layout.GRID_ENGINE_LIBRARIES))
    assert all(place in elsewhere or place.startswith(str(layout.ROOT)) for place in places)
    assert {what for kind, what in words if kind == "file"} == {str(totp.PAM_SERVICE)}
