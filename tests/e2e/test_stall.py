"""A function that stands still, as its user meets it: ended with its stack, or asked where it is."""

from __future__ import annotations

import runpy
import time
from pathlib import Path

import pytest

import clusterfn
from clusterfn import ClusterfnError, ConfigError, Stalled, cluster
from tests.e2e.conftest import BOTH, ON_SLURM, Hosts
from tests.fixtures.standing import waits_for
from tests.waiting import until

FORKS_AND_LOCKS = """def forks_while_a_lock_is_held():
    import os
    import threading

    lock = threading.Lock()
    lock.acquire()
    if not os.fork():
        lock.acquire()  # nobody in this process will ever let it go
    os.wait()
"""


@pytest.mark.lab
@pytest.mark.long
@BOTH
def test_a_fork_that_waits_for_a_lock_is_shown_by_the_line(hosts: Hosts, host: str, tmp_path: Path):
    """The function travels by value, and the host's user may not read the file that it stands in."""
    (tmp_path / "mine.py").write_text(FORKS_AND_LOCKS)
    tmp_path.chmod(0o700)
    function = runpy.run_path(str(tmp_path / "mine.py"))["forks_while_a_lock_is_held"]
    stuck = cluster(host=host)(function).with_options(stall_timeout="10s")  # a busy machine may let it wait for seconds
    with pytest.raises(Stalled) as caught:
        stuck()

    said = str(caught.value)
    assert said.startswith("the job printed nothing and used no CPU time for 10 s\n")
    assert "stage function" in said
    assert "lock.acquire()  # nobody in this process will ever let it go" in said
    assert "os.wait()" in said
    assert "mine.py" in said
    assert "worker.py" not in said


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


def test_a_time_without_a_unit_is_refused_under_its_own_name():
    with pytest.raises(ConfigError, match="stall_timeout='10' is not a duration") as caught:
        cluster(time.sleep).with_options(stall_timeout="10")

    assert 'stall_timeout="10min"' in caught.value.hint
