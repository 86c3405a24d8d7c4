"""What many jobs on many hosts in memory take of one client. Tests and `make bench` use it."""

from __future__ import annotations

import gc
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterfn import Executor
from clusterfn.hosts import host_state
from tests.fakes.slurm_hosts import SlurmHosts
from tests.waiting import until


@dataclass(frozen=True)
class Grown:
    """What so many jobs took.

    Attributes:
        messages: Of the client, for each job from its submission to its end.
        looks: Requests to look at a scheduler, for each host.
        kb: Of memory, for each job that waits; 0 if it was not measured.
        resident_kb: By which this process grew, for each job that waits, with what the fake hosts keep of it. It is
            larger than `kb`, and needs no tracing; 0 where the system does not tell.
        submit_ms, end_ms: CPU of this process for each job, with that of the fake hosts.
    """

    messages: float
    looks: float
    kb: float
    resident_kb: float
    submit_ms: float
    end_ms: float


def grow(world: SlurmHosts, jobs: int, measures_memory: bool) -> Grown:
    """Submit so many jobs to all hosts in turn, wait until all are followed, and end them."""
    executors = [Executor(name) for name in world.nodes]
    first = [executor.submit(abs, -1) for executor in executors]
    until(lambda: all(node.asked["still"] for node in world.nodes.values()))
    gc.collect()
    resident = _resident_kb()
    before, began = world.asked, time.process_time()
    if measures_memory:
        tracemalloc.start()
    made = [executors[number % len(executors)].submit(abs, -1) for number in range(jobs)]
    submitted = time.process_time()
    followed = min(jobs, len(executors) * (host_state.MOST_FOLLOWED - 1))
    until(lambda: (world.asked - before)["still"] >= followed)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] if measures_memory else 0
    resident = _resident_kb() - resident
    tracemalloc.stop()
    ending = time.process_time()
    for node in world.nodes.values():
        node.end_all(later_too=True)
    assert all(job.result(600) == 7 for job in [*first, *made])
    asked = world.asked - before
    return Grown(
        messages=sum(asked.values()) / jobs, looks=asked["squeue"] / len(executors), kb=size / 1024 / jobs,
        resident_kb=resident / jobs, submit_ms=(submitted - began) / jobs * 1e3,
        end_ms=(time.process_time() - ending) / jobs * 1e3,
    )  # fmt: skip


def follow_fewer(patch: pytest.MonkeyPatch, times: int) -> None:
    """Let the client follow that many times fewer jobs of a host at once."""
    patch.setattr(host_state, "MOST_FOLLOWED", host_state.MOST_FOLLOWED // times)


def _resident_kb() -> float:
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
    return next((float(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0.0)
