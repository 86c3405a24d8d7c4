"""The queue of a machine without a scheduler, and jobs whose environment is not there yet."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.box import Box
from tests.bridge.host import Job
from tests.bridge.layout import layout_bridge
from tests.bridge.test_queue import WAITS, ended
from tests.builder import toys
from tests.processes import named
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each test has a network namespace of its own")


class Environments:
    """Jobs whose environment is made by a package's activation script, which waits until it may go on."""

    def __init__(self, box: Box, folder: Path) -> None:
        self.box = box
        self.go = folder / "go"
        self.root = folder / "environments"
        script = f'until [ -e "{self.go}" ]; do sleep 0.02; done; exit "$(cat "{self.go}")"\n'
        slow = toys.conda(folder / "shelf", "slow", {"etc/conda/activate.d/slow.sh": script.encode()})
        packages = [toys.python(folder / "shelf"), slow]
        self.id = "0123456789abcdef"
        plan = {
            "format": 1, "id": self.id, "root": str(self.root), "platform": "linux-64", "packages": packages,
            "python": [int(part) for part in toys.MINOR.split(".")], "fetch": True, "zstd": None, "compile": False,
        }  # fmt: skip
        path = self.root / "builds" / self.id / "plan.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(plan))

    def job(self, gpus: int, **spec: Any) -> Job:
        building = {"root": str(self.root), "id": self.id, "purged": False, "cuda": None}
        python = str(self.root / "envs" / self.id / "bin" / "python")
        return self.box.job(gpus, building=building, python=python, **spec)

    def finish(self, status: int = 0) -> None:
        """Let the script end."""
        self.go.with_suffix(".new").write_text(str(status))
        self.go.with_suffix(".new").rename(self.go)


@pytest.fixture
def environments(box: Box, tmp_path: Path) -> Environments:
    return Environments(box, tmp_path)


def test_a_job_whose_environment_is_being_made_keeps_no_gpus_from_others(box: Box, environments: Environments):
    first, second = environments.job(2, queue_timeout_s=60.0), box.job(2)

    assert box.start(first).wait(150) == WAITS
    until(lambda: box.reason(first) == "environment: activate")
    as_if_since(box.machine / "queue" / first.id, 100)  # longer than queue_timeout
    assert box.run(second)["kind"] == "returned"
    assert not first.has_outcome()
    environments.finish()

    assert ended(first) == ["returned"], first.log()
    assert box.order() == [second.id, first.id]


def as_if_since(ticket: Path, seconds: int) -> None:
    """Let a job have waited for so much longer."""
    told = json.loads(ticket.read_text())
    earlier = {**told, "submitted": told["submitted"] - seconds * 10**9, "t": told["t"] - seconds}
    new = ticket.with_name(f".{ticket.name}")
    new.write_text(json.dumps(earlier))
    new.rename(ticket)


def test_an_environment_that_cannot_be_made_ends_each_job_that_waits_for_it_without_a_gpu(
    box: Box, environments: Environments
):
    first, second = environments.job(2), environments.job(1)
    box.queued(first)
    box.queued(second)

    environments.finish(3)

    assert ended(first, second) == ["environment"] * 2
    for job in (first, second):
        outcome = job.outcome()
        assert "the environment cannot be activated" in outcome["message"] and outcome["stage"] == "environment"
    assert not box.tickets() and not box.order()


@pytest.mark.parametrize("how", ["cancel", pytest.param("conclude", marks=pytest.mark.long)])
def test_a_job_can_be_withdrawn_while_its_environment_is_made_and_the_next_goes_on_with_it(
    box: Box, environments: Environments, how: str
):
    first, second = environments.job(1), environments.job(1)
    box.queued(first)
    box.queued(second)
    until(lambda: "activate" in box.reason(second))

    if how == "cancel":
        (first.folder / "cancel").touch()
    else:
        first.call("conclude", stdin=json.dumps({"kind": "cancelled", "message": "no", "withdraw": True}))
    assert ended(first) == ["cancelled"]
    until(lambda: named(first.folder) == [])
    environments.finish()

    assert ended(second) == ["returned"], second.log()
    assert box.order() == [second.id]


def test_a_script_that_hangs_before_it_makes_an_environment_keeps_no_other_job_waiting(
    box: Box, environments: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    soon = layout_bridge(tmp_path / "soon", ("queue/scripts.py", "_KEPT_S = 300.0", "_KEPT_S = 2.0"))
    monkeypatch.setattr(box.bench, "bridge", soon)
    bad, good = environments.job(1), environments.job(1)
    script, hangs = bad.folder / "job.sh", tmp_path / "hangs"
    plain = script.read_text()
    hanging = f'#!/bin/sh\nif [ "$CLUSTERFN_TURN" ]; then echo $$ > {shlex.quote(str(hangs))}; exec sleep 600; fi\n'
    script.write_text(plain.replace("#!/bin/sh\n", hanging, 1))
    (bad.folder / "builder.jsonl").write_text("{}\n")  # of the time before the machine was restarted
    environments.finish()
    box.queued(bad)
    until(lambda: hangs.exists() and hangs.read_text())
    try:
        box.queued(good)
        assert ended(good) == ["returned"], good.log()
        assert not bad.has_outcome()
        script.write_text(plain)
        (bad.folder / "cancel").touch()
        assert ended(bad) == ["cancelled"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(hangs.read_text()), signal.SIGKILL)


def test_a_supervisor_killed_while_it_makes_an_environment_is_followed_by_one_that_runs_the_job(
    box: Box, environments: Environments
):
    job = environments.job(1, retries=1)
    box.queued(job)
    until(lambda: "activate" in box.reason(job))

    (pid,) = named("run", job.folder)
    os.kill(pid, signal.SIGKILL)
    environments.finish()

    second = job.folder / "attempts" / "2" / "outcome.json"
    until(second.exists)
    assert json.loads(second.read_text())["kind"] == "returned", job.log()
    assert not box.tickets()
