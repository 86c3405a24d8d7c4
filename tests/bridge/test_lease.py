"""GPUs on a machine without a scheduler, with a program that plays nvidia-smi."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.host import Bench, Job, until

SMI = """#!{python}
import json, os, sys, time
state = json.load(open({state!r}))
if state["mode"] == "hang":
    time.sleep(60)
if state["mode"] == "garbage":
    print("<html>502</html>"); sys.exit(0)
if state["mode"] == "mismatch":
    print("Failed to initialize NVML: Driver/library version mismatch"); sys.exit(18)
if state["mode"] == "none":
    print("No devices were found"); sys.exit(6)
query = sys.argv[1]
for index in reversed(range(state["cards"])):
    uuid = "GPU-%s-%d" % (state["name"], index)
    if query == "--query-gpu=pci.bus_id,uuid":
        print("00000000:%02X:00.0, %s" % (index + 1, uuid))
    elif query == "--query-gpu=uuid,memory.used":
        print("%s, %d" % (uuid, state["used"].get(str(index), 3)))
    elif query == "--query-compute-apps=gpu_uuid,pid,process_name" and str(index) in state["apps"]:
        print("%s, %d, /usr/bin/python3" % (uuid, state["apps"][str(index)]))
"""

SHOW = "def f(s=0):\n    import os, time\n    time.sleep(s)\n    return os.environ['CUDA_VISIBLE_DEVICES']\n"


class Box:
    """A machine with cards; its state can be changed at any time."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.bench = bench
        self.name = f"{os.getpid()}{time.monotonic_ns()}"
        self._file = folder / "state.json"
        (folder / "nvidia-smi").write_text(SMI.format(python=sys.executable, state=str(self._file)))
        (folder / "nvidia-smi").chmod(0o755)
        self._path = f"{folder}:{os.environ['PATH']}"
        self.say()

    def say(self, mode: str = "ok", cards: int = 2, used: Any = None, apps: Any = None) -> None:
        state = {"mode": mode, "cards": cards, "used": used or {}, "apps": apps or {}, "name": self.name}
        self._file.with_suffix(".new").write_text(json.dumps(state))
        self._file.with_suffix(".new").rename(self._file)

    def uuid(self, index: int) -> str:
        return f"GPU-{self.name}-{index}"

    def job(self, gpus: int, *args: Any, **spec: Any) -> Job:
        return self.bench.job(SHOW, *args, resources={"gpus": gpus}, **spec)

    def start(self, job: Job):
        return job.start(PATH=self._path)

    def run(self, job: Job) -> dict[str, Any]:
        return job.run(PATH=self._path)


@pytest.fixture
def box(bench: Bench, tmp_path: Path) -> Box:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Box(folder, bench)


def test_cards_are_given_by_uuid_in_pci_order(box: Box):
    box.say(cards=4)
    job = box.job(2)

    box.run(job)

    assert job.value() == f"{box.uuid(0)},{box.uuid(1)}"
    assert job.wait_for("starting")["gpus"] == [box.uuid(0), box.uuid(1)]


def test_more_than_the_host_has_is_refused_at_once(box: Box):
    outcome = box.run(box.job(3))

    assert (outcome["kind"], outcome["stage"]) == ("unsatisfiable", "lease")
    assert outcome["message"] == "the job asks for 3 GPUs, and the host has only 2"


def test_a_host_without_nvidia_smi_has_no_cards(box: Box):
    outcome = box.job(1).run(PATH="/nowhere")

    assert outcome["kind"] == "unsatisfiable"
    assert "nvidia-smi cannot be started" in outcome["message"]


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("mismatch", "environment", "exit code 18: Failed to initialize NVML: Driver/library version mismatch"),
        ("garbage", "environment", "answered what is not a table: <html>502</html>"),
        ("none", "unsatisfiable", "the host has none"),
    ],
)
def test_what_nvidia_smi_said_is_told(box: Box, mode, kind, words):
    box.say(mode)

    outcome = box.run(box.job(1))

    assert (outcome["kind"], outcome["stage"]) == (kind, "lease")
    assert words in outcome["message"]


@pytest.mark.long
def test_a_hanging_nvidia_smi_is_told(box: Box):
    box.say("hang")

    outcome = box.run(box.job(1))

    assert (outcome["kind"], outcome["stage"]) == ("environment", "lease")
    assert "did not answer within 10 seconds" in outcome["message"]


def test_cards_that_strangers_use_are_passed_over(box: Box):
    box.say(cards=4, used={"0": 812}, apps={"2": os.getpid()})
    job = box.job(2)

    box.run(job)

    assert job.value() == f"{box.uuid(1)},{box.uuid(3)}"


def test_who_waits_says_for_whom(box: Box):
    box.say(used={"0": 812})
    first, second = box.job(1, 1.5), box.job(1)
    box.start(first)
    first.wait_for("running")

    script = box.start(second)

    reason = second.wait_for("pending")["reason"]
    assert reason.startswith("1 of 2 GPUs held by root (1)") or os.geteuid() != 0
    assert "812 MiB in use by nobody visible" in reason
    assert script.wait(20) == 0


def test_who_waits_is_woken_by_the_holders_end(box: Box):
    first, second = box.job(2, 60), box.job(2)
    box.start(first)
    first.wait_for("running")
    box.start(second)
    second.wait_for("pending")

    os.killpg(first.bench.started[0].pid, signal.SIGKILL)  # the script and the supervisor, without a word
    began = time.monotonic()

    until(second.has_outcome)
    assert time.monotonic() - began < 2.5
    assert second.outcome()["kind"] == "returned"


def test_waiting_ends_with_queue_timeout(box: Box):
    first, second = box.job(2, 60), box.job(1, queue_timeout_s=0.5)
    box.start(first)
    first.wait_for("running")

    outcome = box.run(second)

    assert (outcome["kind"], outcome["stage"]) == ("unsatisfiable", "lease")
    assert "no GPUs became free within the 0.5 s of queue_timeout: 2 of 2 GPUs held" in outcome["message"]


def test_who_waits_can_be_stopped(box: Box):
    first, second = box.job(2, 60), box.job(1)
    box.start(first)
    first.wait_for("running")
    script = box.start(second)
    second.wait_for("pending")

    (second.folder / "cancel").touch()

    assert script.wait(5) == 10
    assert second.outcome()["kind"] == "cancelled"


def test_a_stranger_that_leaves_is_noticed(box: Box):
    box.say(cards=1, apps={"0": os.getpid()})
    job = box.job(1)
    box.start(job)
    assert "pid" in job.wait_for("pending")["reason"]

    box.say(cards=1)

    until(job.has_outcome)
    assert job.value() == box.uuid(0)


def test_the_worker_holds_the_cards_too(box: Box):
    job = box.job(1, 60)
    box.start(job)
    job.wait_for("running")

    links = [os.readlink(path) for path in Path(f"/proc/{job.worker_pid()}/fd").iterdir()]

    assert any(link.startswith("socket:") for link in links)


def test_twenty_jobs_on_eight_cards_never_share_one(box: Box):
    box.say(cards=8)
    jobs = [box.job(1 + index % 3, 0.2) for index in range(20)]

    for script in [box.start(job) for job in jobs]:
        assert script.wait(100) == 0

    journal = next((box.bench.root / "machines").glob("*/holds.jsonl")).read_text()
    lines = [json.loads(line) for line in journal.splitlines()]
    held: set[str] = set()
    for when, step, uuid in sorted(steps(lines)):
        assert (uuid in held) == (step == 0), when
        held ^= {uuid}
    assert not held
    assert len(lines) == 2 * sum(1 + index % 3 for index in range(20))


def steps(lines: list[dict[str, Any]]) -> list[tuple[float, int, str]]:
    """When each card was taken (1) and released (0)."""
    return [(line["released"] or line["taken"], 0 if line["released"] else 1, line["uuid"]) for line in lines]


def test_a_lease_by_file(box: Box):
    first, second = box.job(2, 1.0, lease="file"), box.job(2, lease="file")
    box.start(first)
    first.wait_for("running")

    outcome = box.run(second)

    assert outcome["kind"] == "returned"
    assert second.wait_for("pending")["reason"] == "too few of 2 GPUs are free; waiting for 2"
    for index in range(2):
        Path(f"/tmp/clusterfn-gpu-{box.uuid(index)}").unlink()


def test_slurms_own_cards_are_left_alone(box: Box):
    job = box.job(2, scheduler="slurm")

    job.start(PATH="/nowhere", CUDA_VISIBLE_DEVICES="0,1", SLURM_JOB_ID="1").wait(20)

    assert job.value() == "0,1"


def test_no_gpus_hides_slurms_cards_as_well(box: Box):
    job = box.job(0, scheduler="slurm")

    job.start(CUDA_VISIBLE_DEVICES="0,1", SLURM_JOB_ID="1").wait(20)

    assert job.value() == ""


def test_a_card_is_marked_before_strangers_are_looked_for(box: Box):
    """Somebody else's lease on the first card, seen by a name that is taken."""
    mark = socket.socket(socket.AF_UNIX)
    mark.bind(f"\0clusterfn/gpu/{box.uuid(0)}")
    job = box.job(1)

    box.run(job)

    mark.close()
    assert job.value() == box.uuid(1)
