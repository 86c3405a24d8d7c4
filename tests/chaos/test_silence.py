"""A heart that stands still is not a death: while the scheduler, or the process table, says that the job lives, nobody
concludes anything."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterfn.calls.job import entry_of
from clusterfn.calls.liveness import SILENT_AFTER_S
from tests.chaos.inprocess import Here, Sent
from tests.chaos.onhost import until
from tests.chaos.world import HOSTS, World
from tests.lab.network import DelayProxy

pytestmark = [pytest.mark.lab, pytest.mark.long]

STOPPED_S = 20.0
LINES = 100


@pytest.fixture
def stopped() -> Iterator[list[int]]:
    """Processes to be woken again, whatever happens."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue


def stop_for(pids: list[int], stopped: list[int], seconds: float) -> None:
    """SIGSTOP, and SIGCONT after that time."""
    stopped += pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def stand_still(jobs: dict[Sent, tuple[str, ...]], stopped: list[int]) -> None:
    """These processes of each job, for longer than the witness waits."""
    assert STOPPED_S > SILENT_AFTER_S + 5
    for sent in jobs:
        sent.await_at("function")
    stop_for([sent.there.by_event()[name] for sent, names in jobs.items() for name in names], stopped, STOPPED_S)


def test_job_that_hangs_is_not_dead(here: Here, stopped: list[int]) -> None:
    """The supervisor, whose function runs to its end meanwhile, or all of the job; on a bare host and on SLURM; and
    where SLURM was given the job twice and the client knows the number of the one that did nothing."""
    twice = here.submit("speak", "slurm", lines=LINES, every=0.1)
    twice.await_at("function")
    second = twice.sbatch()
    jobs = [here.submit("speak", host, lines=LINES, every=0.1) for host in ("bare", "slurm", "bare")]
    assert until(lambda: "nothing to do" in twice.log(), 150), twice.log()
    entry_of(twice.job).tracker.scheduler_id = second
    twice.session.watch.remove(twice.name)
    everybody = ("script", "supervisor", "worker")
    stand_still(dict(zip([twice, *jobs], [("supervisor",)] * 3 + [everybody])), stopped)
    for sent in (twice, *jobs):
        sent.ends_once(LINES)


def test_job_whose_script_was_started_twice_is_judged_by_the_one_that_runs(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: list[int]
) -> None:
    """The answer to `spawn` is lost on its way; the second script, whose pid arrives, has long ended when the first
    one's heart stands still."""
    port = world.lab.host(HOSTS["bare-setup"].alias).port
    with DelayProxy(0, port, 0.2) as proxy:
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(world.behind(tmp_path, proxy.port, "bare-setup")))
        sent = Here(world).submit("speak", "bare-setup", lines=150, every=0.1)
        sent.await_at("start")
        proxy.cut()
        assert until(lambda: "nothing to do" in sent.log(), 150), sent.there.history()
        stand_still({sent: ("supervisor",)}, stopped)
        sent.ends_once(150)
        sent.session.connection.close()
