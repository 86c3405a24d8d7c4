"""A job whose supervisor was stopped: every host says so and ends it on request, with a scheduler and without."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

import clusterfn
from clusterfn import cluster
from clusterfn.errors import Cancelled
from tests.e2e.conftest import Hosts
from tests.waiting import until

pytestmark = [pytest.mark.lab]


def run_stuck(host: str) -> clusterfn.Job[str]:
    """A job that has stopped its own supervisor; it lasts for minutes."""

    @cluster(host=host, time="5min")
    def stops_its_supervisor(told: str) -> str:
        import os
        import signal
        import time

        supervisor = os.getppid()
        os.kill(supervisor, signal.SIGSTOP)
        with open(told, "w") as file:
            file.write(str(supervisor))
        time.sleep(250)
        return "value"

    return stops_its_supervisor.submit(f"/tmp/stuck-{os.getpid()}-{time.monotonic_ns()}")


@pytest.mark.parametrize("host", ["tensor01", "slurm"])
def test_a_job_that_stopped_its_supervisor_is_ended_by_cancel_within_15_s(hosts: Hosts, host: str):
    job = run_stuck(host)
    until(lambda: job.state in ("STARTING", "RUNNING"))
    time.sleep(1.0)  # it stops its supervisor, which says nothing any more
    began = time.monotonic()

    said = subprocess.run(
        [sys.executable, "-m", "clusterfn", "cancel", job.id], capture_output=True, text=True, timeout=150
    )

    assert said.returncode == 0, said.stderr
    assert "was stopped: CANCELLED" in said.stderr
    assert isinstance(job.exception(150), Cancelled)
    assert time.monotonic() - began < 20  # the command has to connect, too
