"""One look at who holds which card of a machine and who waits, with a program that plays nvidia-smi."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.cards import machine
from tests.bridge.host import Bench, Job, clean_environ
from tests.lab.gpubox import GpuBox

SLEEP = "def f(s):\n    import time\n    time.sleep(s)\n"


@pytest.fixture
def box(tmp_path: Path) -> GpuBox:
    return machine(tmp_path / "bin", *[("NVIDIA RTX A6000", 49140)] * 4)


class Desk:
    """Runs jobs on that machine and looks at it."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench = bench
        self.path = f"{folder}:{os.environ['PATH']}"

    def start(self, gpus: int, **spec: Any) -> Job:
        job = self.bench.job(SLEEP, 600, resources={"gpus": gpus}, **spec)
        job.start(PATH=self.path)
        return job

    def running(self, gpus: int, **spec: Any) -> Job:
        job = self.start(gpus, **spec)
        job.wait_for("running")
        return job

    def look(self) -> dict[str, Any]:
        supervise = [self.bench.host, "-I", "-S", str(self.bench.bridge / "supervise.py")]
        argv = [*supervise, "gpus", str(self.bench.root)]
        environ = clean_environ(PATH=self.path)
        done = self.bench.inside(
            lambda: subprocess.run(argv, capture_output=True, text=True, env=environ, timeout=150, check=True)
        )
        return json.loads(done.stdout)


@pytest.fixture
def desk(bench: Bench, tmp_path: Path, box: GpuBox) -> Desk:
    return Desk(bench, tmp_path / "bin")


def test_a_held_gpu_is_its_jobs_and_one_of_another_user_is_nobodys(desk: Desk, box: GpuBox):
    state = box.read()
    state["cards"][2]["processes"] = [{"pid": os.getpid(), "used_mib": 3000, "name": "/usr/bin/python3"}]
    state["cards"][3].update(hidden_used_mib=900, utilization=7)
    box.write(state)
    job = desk.running(1)

    held, free, used, hidden = desk.look()["gpus"]

    assert (held["uuid"], held["index"], held["used_mib"], held["total_mib"]) == (box.uuid(0), 0, 4, 49140)
    assert (held["holder"]["own"], held["holder"]["job"], held["holder"]["name"]) == (True, job.id, "f")
    assert 0 <= time.time() - held["holder"]["since"] < 600
    assert (free["holder"], free["without_lease"]) == (None, [])
    assert used["without_lease"][0].startswith(f"python3 (pid {os.getpid()}, ")
    assert (hidden["without_lease"], hidden["use_percent"]) == (["900 MB in use by an unknown process"], 7)


def test_looking_again_and_again_keeps_nobody_from_being_heard(desk: Desk):
    """Who connects to a holder stays in its queue until it is full: then nobody who waits could be woken any more."""
    job = desk.running(4)
    before = connections(job)

    desk.look()

    assert connections(job) == before


def connections(job: Job) -> int:
    """How many knock at cards, or have knocked and were not heard."""
    table = Path(f"/proc/{job.worker_pid()}/net/unix").read_bytes()
    return sum(b"@clusterfn/gpu/" in line for line in table.splitlines())


def test_what_nvidia_smi_says_instead_of_gpus_is_passed_on(desk: Desk, box: GpuBox):
    box.set("garbage")

    told = desk.look()

    assert told["gpus"] == []
    assert told["trouble"].startswith("nvidia-smi answered what is not a table")
