"""A supervisor, or another program of clusterfn's, that a signal has stopped or a file system hangs: the job still ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge.host import Bench, is_running, layout_bridge
from tests.waiting import until

STOPS_ITS_SUPERVISOR = """def f(seconds):
    import os, signal, time
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(seconds)
    return "value"
"""
STOPS_ALL_ABOVE = """def f(seconds):
    import os, signal, time
    supervisor = os.getppid()
    script = int(open("/proc/%d/stat" % supervisor).read().rpartition(")")[2].split()[1])
    for pid in (script, supervisor):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    return "value"
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("source", [STOPS_ITS_SUPERVISOR, STOPS_ALL_ABOVE], ids=["supervisor", "and job.sh"])
def test_a_job_that_stops_its_own_supervisor_returns_its_value(bench: Bench, source: str):
    job, outcome = bench.run(source, 0.2)

    assert (outcome["kind"], job.value()) == ("returned", "value")
    assert job.script is not None and job.script.returncode == 0


def test_the_time_limit_of_a_job_that_stops_its_supervisor_holds(bench: Bench):
    job = bench.job(STOPS_ITS_SUPERVISOR, 600, resources={"time_s": 1.0})

    outcome = job.run()

    assert outcome["kind"] == "time" and outcome["by"] == "supervisor"
    assert outcome["usage"]["wall_s"] < 15
    assert job.tagged() == []


def test_a_job_whose_supervisor_is_stopped_ends_when_it_is_asked_to(bench: Bench):
    job = bench.job(STOPS_ITS_SUPERVISOR, 600)
    script = job.start()
    supervisor = job.supervisor_pid()
    until(lambda: state_of(supervisor) == "T")
    asked = time.monotonic()
    (job.folder / "cancel").touch()

    script.wait(150)

    assert job.outcome()["kind"] == "cancelled"
    assert time.monotonic() - asked < 15
    assert job.tagged() == []
