"""One look at who holds which card of a machine and who waits, with a program that plays nvidia-smi."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.cards import machine
from tests.bridge.host import Bench, Job, clean_environ
from tests.lab.gpubox import GpuBox
from tests.waiting import until

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

    def look(self, lease: str = "socket") -> dict[str, Any]:
        supervise = [self.bench.host, "-I", "-S", str(self.bench.bridge / "supervise.py")]
        argv = [*supervise, "gpus", str(self.bench.root), lease]
        environ, enter = clean_environ(PATH=self.path), self.bench.apart and self.bench.apart.enter
        done = subprocess.run(
            argv, capture_output=True, text=True, env=environ, preexec_fn=enter, timeout=150, check=True
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
    assert 0 <= time.time() - held["holder"]["since"] < 60
    assert (free["holder"], free["without_lease"]) == (None, [])
    assert used["without_lease"][0].startswith(f"python3 (pid {os.getpid()}, ")
    assert (hidden["without_lease"], hidden["use_percent"]) == (["900 MB in use by an unknown process"], 7)


def test_who_waits_learns_in_order_and_why(desk: Desk):
    desk.running(3)
    first, second = desk.start(2), None
    until(lambda: len(desk.look()["waiting"]) == 1)
    second = desk.start(4)

    told = until(lambda: len(found := desk.look()["waiting"]) == 2 and found)

    assert [(each["job"], each["asked"]["gpus"], each["own"]) for each in told] == [
        (first.id, 2, True),
        (second.id, 4, True),
    ]
    assert "3 of 4 GPUs held by" in told[0]["reason"] and told[0]["since"] <= told[1]["since"] <= time.time()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a network namespace of its own")
def test_who_waits_behind_another_user_learns_for_whom_free_gpus_are_kept(desk: Desk):
    desk.running(2)
    with mark(desk.bench, "wait/4242/1/99999999/4/1/0/aaaaaaaaaaaaaaaa/a6000/0"):
        desk.start(1)
        theirs, mine = until(lambda: len(found := desk.look()["waiting"]) == 2 and found)

    assert theirs["reason"] == "waiting for 4 GPUs of type a6000; GPUs that become free are reserved for it"
    kept = "the others reserved for 4242's earlier 4-GPU job; waiting for 1; 1 job before it"
    assert mine["reason"] == f"2 of 4 GPUs held by you (2), {kept}"
    journal = next(desk.bench.root.glob("machines/*/holds.jsonl")).read_text().splitlines()
    reasons = [told["reason"] for told in map(json.loads, journal) if told["event"] == "ticket"]
    assert [reason.partition(", ")[2] for reason in reasons] == [kept]


def mark(bench: Bench, name: str) -> socket.socket:
    """A name that another user holds on this machine."""

    def hold() -> socket.socket:
        held = socket.socket(socket.AF_UNIX)
        held.bind(f"\0clusterfn/{name}")
        held.listen()
        return held

    assert bench.apart is not None
    return bench.apart.inside(hold)


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


def test_a_lease_by_file_is_seen_too(desk: Desk, box: GpuBox):
    job = desk.running(1, lease="file")

    holder = desk.look("file")["gpus"][0]["holder"]

    assert (holder["own"], holder["job"]) == (True, job.id)


@pytest.mark.parametrize(
    ("mode", "trouble"),
    [
        ("nvml-mismatch", "nvidia-smi failed with exit code 18: Failed to initialize NVML"),
        ("garbage", "nvidia-smi answered what is not a table"),
        ("no-devices", ""),
    ],
)
def test_what_nvidia_smi_says_instead_of_gpus_is_passed_on(desk: Desk, box: GpuBox, mode: str, trouble: str):
    box.set(mode)

    told = desk.look()

    assert told["gpus"] == []
    assert told["trouble"].startswith(trouble) and bool(told["trouble"]) == bool(trouble)


def test_a_machine_without_nvidia_smi_has_no_gpus(desk: Desk):
    desk.path = "/nowhere"

    assert (desk.look()["gpus"], desk.look()["trouble"]) == ([], "")
