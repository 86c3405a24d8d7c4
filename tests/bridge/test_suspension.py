"""A job that is stopped as a whole, as a scheduler suspends one, continues later with all the time that it had."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from tests.bridge.host import Bench, Job
from tests.bridge.layout import layout_bridge
from tests.waiting import WAIT_S

LIMIT_S = 8.0  # a busy machine takes some of it before a job is suspended
PAUSE_S = LIMIT_S + 1
WAITS = """
def f(path, seconds):
    import os, time
    print("begun", flush=True)
    ends = time.monotonic() + seconds
    while not os.path.exists(path) and time.monotonic() < ends:
        time.sleep(0.1)
    return "returned"
"""


@pytest.fixture
def waits(bench: Bench, tmp_path):
    """A job that returns once `end` is called, and has begun."""
    bench.bridge = layout_bridge(tmp_path / "usual", ("supervisor/limits.py", "_BUSY_S = 100.0", "_BUSY_S = 2.0"))

    def make(seconds: float = 60.0, scheduler: str = "slurm", **spec: object) -> Job:
        made = bench.job(WAITS, str(tmp_path / "end"), seconds, scheduler=scheduler, **spec)
        made.start(**({"SLURM_JOB_ID": "77"} if scheduler == "slurm" else {}))
        made.wait_for("running")
        return made

    make.end = (tmp_path / "end").touch  # type: ignore[attr-defined]
    return make


def members(job: Job) -> list[int]:
    """Its script, its supervisor and its worker."""
    assert job.script is not None
    return [job.script.pid, job.supervisor_pid(), job.worker_pid()]


def suspend(pids: list[int], *first: int) -> None:
    """Stop these processes for a while, as SLURM does: all at once, after `first` signals."""
    for number in (*first, signal.SIGSTOP):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(0.5 if number != signal.SIGSTOP else PAUSE_S)
    for pid in pids:
        # The first one that goes on may end the others.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_job_has_all_of_its_time_after_a_suspension(waits):
    began = time.monotonic()
    job = waits(resources={"time_s": LIMIT_S})
    suspend(members(job))
    resumed = job.wait_for("resumed")
    waits.end()
    job.script.wait(WAIT_S)
    outcome, ended = job.outcome(), time.monotonic()

    assert outcome["kind"] == "returned"
    assert PAUSE_S - 1 < resumed["stopped_s"] < ended - began
    assert resumed["reason"].startswith("it was suspended for ")
    assert outcome["usage"]["wall_s"] < ended - began - (PAUSE_S - 1)
    assert any("it was suspended for" in note for note in outcome["notes"])


def test_its_limit_holds_after_a_suspension(waits):
    job = waits(resources={"time_s": LIMIT_S})
    suspend(members(job))
    job.script.wait(WAIT_S)

    assert job.outcome()["kind"] == "time"
    assert job.outcome()["usage"]["wall_s"] >= LIMIT_S


@pytest.mark.parametrize("announced", [pytest.param([], marks=pytest.mark.long), [signal.SIGTSTP]])
def test_a_job_that_no_scheduler_can_suspend_gets_no_more_time(waits, announced):
    """The function can send all of these signals itself."""
    job = waits(scheduler="bare", resources={"time_s": LIMIT_S})
    suspend(members(job), *announced)
    job.script.wait(WAIT_S)

    assert job.outcome()["kind"] == "time"
    assert job.outcome()["usage"]["wall_s"] > PAUSE_S
    assert not [event for event in job.events() if event["event"] in ("suspended", "resumed")]


@pytest.mark.parametrize("scheduler", ["slurm", pytest.param("bare", marks=pytest.mark.long)])
def test_a_function_that_stops_its_supervisor_gets_no_more_time(waits, scheduler):
    job = waits(scheduler=scheduler, resources={"time_s": LIMIT_S})
    suspend([job.supervisor_pid()])
    job.script.wait(WAIT_S)

    assert job.outcome()["kind"] == "time"
    assert job.outcome()["usage"]["wall_s"] > PAUSE_S
    assert not [event for event in job.events() if event["event"] == "resumed"]


def test_a_worker_that_is_stopped_alone_gets_no_more_time(waits):
    job = waits(resources={"time_s": LIMIT_S})
    os.kill(job.worker_pid(), signal.SIGSTOP)
    job.script.wait(WAIT_S)

    assert job.outcome()["kind"] == "time"


def test_an_idle_job_has_not_stalled_while_it_was_suspended(waits):
    job = waits(stall_s=LIMIT_S)
    suspend(members(job))
    job.wait_for("resumed")
    waits.end()
    job.script.wait(WAIT_S)

    assert job.outcome()["kind"] == "returned"
