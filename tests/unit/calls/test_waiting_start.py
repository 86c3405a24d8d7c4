"""Jobs that a host without a scheduler has not started yet, because it starts others before them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterfn import Executor
from clusterfn.calls import queue_tracker
from clusterfn.hosts.rpc.frames import Header
from tests.fakes.slurm_hosts import LoginNode, slurm_hosts
from tests.waiting import until


class Busy(LoginNode):
    """A machine that has other jobs to start first: it starts none, and tells which starts it may forget."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.spawns: list[int] = []
        self.stopped: list[int] = []

    def _answers(self, request: Header, body: bytes) -> Iterator[tuple[Header, bytes]]:
        if request["do"] == "spawn":
            self.spawns.append(request["id"])
            return
        if request["do"] == "stop":
            self.stopped.append(request["target"])
        yield from super()._answers(request, body)

    def ran(self, program: str, request: Header, stdin: bytes) -> Iterator[tuple[Header, bytes]]:
        if "conclude" not in request["argv"]:
            yield from super().ran(program, request, stdin)
            return
        out = json.dumps({"kind": "cancelled", "won": True, "attempt": None}).encode()
        yield {"end": True, "ok": True, "rc": 0, "signal": None, "out": len(out), "truncated": False}, out


def test_a_job_that_is_not_started_yet_is_canceled_at_once_and_never_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with slurm_hosts(monkeypatch, tmp_path, 1, 7_000, scheduler="bare", node=Busy) as hosts:
        node = hosts.nodes["node7000"]
        with Executor("node7000") as executor:
            jobs = [executor.submit(abs, number) for number in range(3)]
            until(lambda: len(node.spawns) == 3)

            monkeypatch.setattr(queue_tracker, "TAKES_S", 0.0)
            until(lambda: jobs[0].reason)
            assert jobs[0].reason.startswith("node7000 has not started it for ")
            assert all(job.cancel() for job in jobs)
            node.end_all()

            assert all(job.cancelled() for job in jobs)
            until(lambda: sorted(set(node.stopped) & set(node.spawns)) == node.spawns)
