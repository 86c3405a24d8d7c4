"""Calls that wait on their host, and are withdrawn: many at the same time, and those that it has not started yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn import ClusterfnError, Executor
from tests.fakes.slurm_hosts import LoginNode, slurm_hosts
from tests.waiting import until

MANY = 8  # calls that are concluded at the same time


class Slow(LoginNode):
    """A login node that concludes jobs only once it was asked for many, all of them at the same time.

    Attributes:
        damaged: A job of which it says nothing that can be read.
    """

    damaged = ""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._asked_to_conclude: list[Any] = []

    def ran(self, program: str, request: Any, stdin: bytes) -> Iterator[tuple[Any, bytes]]:
        if "conclude" not in request["argv"]:
            yield from super().ran(program, request, stdin)
            return
        self._asked_to_conclude.append(request)
        if len(self._asked_to_conclude) == MANY:
            asked, self._asked_to_conclude = self._asked_to_conclude, []
            for each in asked:
                is_damaged = bool(self.damaged) and each["argv"][-1].endswith(self.damaged)
                out = b"" if is_damaged else json.dumps({"attempt": 1, "kind": "cancelled", "won": True}).encode()
                told = {"end": True, "ok": True, "rc": 0, "signal": None, "out": len(out), "truncated": False}
                self._say({"id": each["id"], **told}, out)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Slow]:
    with slurm_hosts(monkeypatch, tmp_path, 1, first=700, node=Slow) as world:
        (made,) = world.nodes.values()
        assert isinstance(made, Slow)
        yield made


def test_many_calls_are_withdrawn_at_the_same_time_and_a_failure_hides_none(node: Slow):
    executor = Executor("node700")
    jobs = [executor.submit(abs, -1) for _ in range(2 * MANY)]
    until(lambda: node.asked["still"] == len(jobs))
    node.damaged = jobs[3].id

    with pytest.raises(ClusterfnError, match="could not conclude the job"):
        executor.shutdown(wait=False, cancel_futures=True)

    assert [job.cancelled() for job in jobs] == [number != 3 for number in range(len(jobs))]
    assert node.asked["scancel"] == len(jobs) - 1


class Busy(LoginNode):
    """A machine that has other jobs to start first: it starts none, and tells which starts it may forget."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.spawns: list[int] = []
        self.stopped: list[int] = []

    def _answers(self, request: Any, body: bytes) -> Iterator[tuple[Any, bytes]]:
        if request["do"] == "spawn":
            self.spawns.append(request["id"])
            return
        if request["do"] == "stop":
            self.stopped.append(request["target"])
        yield from super()._answers(request, body)

    def ran(self, program: str, request: Any, stdin: bytes) -> Iterator[tuple[Any, bytes]]:
        if "conclude" not in request["argv"]:
            yield from super().ran(program, request, stdin)
            return
        out = json.dumps({"kind": "cancelled", "won": True, "attempt": None}).encode()
        yield {"end": True, "ok": True, "rc": 0, "signal": None, "out": len(out), "truncated": False}, out


def test_a_job_that_is_not_started_yet_is_canceled_at_once_and_never_started(monkeypatch, tmp_path):
    with slurm_hosts(monkeypatch, tmp_path, 1, 7_000, scheduler="bare", node=Busy) as hosts:
        node = hosts.nodes["node7000"]
        with Executor("node7000") as executor:
            jobs = [executor.submit(abs, number) for number in range(3)]
            until(lambda: len(node.spawns) == 3)

            until(lambda: jobs[0].reason)
            assert jobs[0].reason.startswith("node7000 has not started it for ")
            assert all(job.cancel() for job in jobs)
            node.end_all()

            assert all(job.cancelled() for job in jobs)
            until(lambda: sorted(set(node.stopped) & set(node.spawns)) == node.spawns)
