"""What a job used, in every outcome: its cards as well, measured beside the job and never at its cost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.host import Bench, Job
from tests.waiting import until

# The first argument of a query says which; what the cards are asked while the job runs is written down.
SMI = """#!/bin/sh
case $1 in
--query-gpu=pci.bus_id,*) echo "00000000:01:00.0, 0, {uuid}, 24576, [N/A], NVIDIA Toy" ;;
--query-gpu=uuid,name,memory.used,utilization.gpu) echo "$$ $*" >>'{folder}/asked'; . '{folder}/answer' ;;
--query-gpu=*) echo "{uuid}, NVIDIA Toy, 24576" ;;
esac
"""
WAIT = "    import os, time\n    while not os.path.exists(go):\n        time.sleep(0.02)\n"
ENDS = {
    "returned": WAIT + "    return 1\n",
    "raised": WAIT + "    raise ValueError(go)\n",
    "exited": WAIT + "    os._exit(3)\n",
}
BUSY = """    import os
    block = bytearray(os.urandom(1) * (80 << 20))
    while not os.path.exists(go):
        pass
"""


class Measured:
    """A machine with one card whose nvidia-smi answers `answer` while a job runs."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.uuid = f"GPU-{os.urandom(16).hex()}"
        self.go = folder / "go"
        self._folder, self._bench = folder, bench
        self.answers(f"echo '{self.uuid}, NVIDIA Toy, 20000, 97'")
        program = folder / "nvidia-smi"
        program.write_text(SMI.format(uuid=self.uuid, folder=folder))
        program.chmod(0o755)

    def answers(self, line: str) -> None:
        """From now on, by this shell line."""
        (self._folder / "answer").write_text(line + "\n")

    def job(self, body: str, gpus: int = 1, **spec: Any) -> Job:
        return self._bench.job("def f(go):\n" + body, str(self.go), resources={"gpus": gpus}, **spec)

    def start(self, job: Job) -> Job:
        job.start(PATH=f"{self._folder}:{os.environ['PATH']}")
        return job

    def asked(self) -> list[str]:
        """What was asked about while the job ran: pid and arguments."""
        path = self._folder / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def await_answer(self) -> int:
        """Until one has answered and was collected; its pid."""
        pid = int(until(self.asked)[0].split()[0])
        until(lambda: not Path(f"/proc/{pid}").exists())
        return pid


@pytest.fixture
def machine(bench: Bench, tmp_path: Path) -> Measured:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Measured(folder, bench)


def ended(job: Job) -> dict[str, Any]:
    assert job.script is not None
    job.script.wait(150)
    return job.outcome()


@pytest.mark.parametrize("kind", sorted(ENDS))
def test_every_end_of_a_worker_says_what_its_gpus_were_used(machine: Measured, kind):
    job = machine.start(machine.job(ENDS[kind]))
    machine.await_answer()
    machine.go.touch()

    outcome = ended(job)

    assert (outcome["kind"], outcome["notes"]) == (kind, [])
    (card,) = outcome["usage"]["gpus"]
    assert card == {
        "uuid": machine.uuid, "name": "NVIDIA Toy", "peak_memory_bytes": 20000 * 2**20,
        "peak_use_percent": 97, "mean_use_percent": 97.0,
    }  # fmt: skip
    assert machine.asked()[0].endswith(f"-i {machine.uuid}")


def test_a_running_job_says_what_it_uses_now_and_its_outcome_what_it_used(machine: Measured):
    machine.answers(f"echo '{machine.uuid}, NVIDIA Toy, 20000, 97'")
    job = machine.start(machine.job(BUSY))

    used = until(lambda: (now := so_far(job).get("now")) and now["gpus"][0]["use_percent"] and {"now": now})
    listed = job.bench.listed()[job.id]
    machine.go.touch()
    outcome = ended(job)

    assert 0.02 < used["now"]["cores"] < 1.5 and used["now"]["memory_bytes"] > 80 << 20
    machine_now = {"uuid": machine.uuid, "memory_bytes": 20000 * 2**20, "use_percent": 97}
    assert used["now"]["gpus"] == [machine_now]
    assert listed["state"] == "RUNNING" and listed["usage"]["now"]["memory_bytes"] > 80 << 20
    assert listed["asked"] == {"cores": 1, "gpus": 1} and listed["ended"] is None
    assert "now" not in outcome["usage"]
    after = job.bench.listed()[job.id]
    assert after["usage"] == outcome["usage"] and after["ended"] == pytest.approx(time.time(), abs=60)


def test_what_a_worker_used_counts_that_was_gone_before_it_was_looked_at(bench: Bench):
    """Its memory is looked at ten times a second, and the kernel knows the rest."""
    _, outcome = bench.run("def f():\n    import os\n    held = b'x' * (200 << 20)\n    os._exit(3)\n")

    assert outcome["kind"] == "exited"
    assert outcome["usage"]["peak_memory_bytes"] >= 200 << 20


def test_a_job_without_gpus_asks_nobody(machine: Measured):
    body = "    import time\n    time.sleep(1.5)\n"

    outcome = ended(machine.start(machine.job(body, gpus=0)))

    assert (outcome["usage"]["gpus"], machine.asked()) == ([], [])


def test_a_hanging_nvidia_smi_is_none_of_the_jobs(machine: Measured):
    """Neither its memory nor its processor time; it is not a child that the function left, and delays nothing."""
    machine.answers("exec sleep 600")
    body = WAIT + "    import subprocess\n    return subprocess.getoutput('echo done')\n"
    job = machine.start(machine.job(body))
    pid = int(until(machine.asked)[0].split()[0])
    machine.go.touch()

    outcome = ended(job)

    assert (outcome["kind"], outcome["notes"]) == ("returned", [])
    assert not [event for event in job.events() if event["event"] == "note"]
    (card,) = outcome["usage"]["gpus"]
    assert card == {**dict.fromkeys(card), "uuid": machine.uuid}, "what was not measured is null and not zero"
    until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.long
def test_a_hanging_nvidia_smi_is_given_up_with_one_note(machine: Measured):
    machine.answers("exec sleep 600")
    job = machine.start(machine.job(WAIT))
    pid = int(until(machine.asked)[0].split()[0])
    until(lambda: not Path(f"/proc/{pid}").exists())
    machine.go.touch()

    outcome = ended(job)

    assert outcome["notes"] == [
        "the use of the GPUs was not measured to the end: nvidia-smi did not answer within 30 s"
    ]
    assert len(machine.asked()) == 1


def test_garbage_from_nvidia_smi_is_reported_once_and_harms_nothing(machine: Measured):
    machine.answers("printf '\\377\\376<html>502, [N/A]\\n, , ,\\n'")
    job = machine.start(machine.job(ENDS["returned"]))
    machine.await_answer()
    machine.go.touch()

    outcome = ended(job)

    (note,) = outcome["notes"]
    assert outcome["kind"] == "returned" and "not a table of GPUs" in note and "502" in note


def test_numbers_that_the_driver_does_not_know_stay_unknown(machine: Measured):
    machine.answers(f"echo '{machine.uuid}, NVIDIA Toy, 512, [N/A]'")
    job = machine.start(machine.job(ENDS["returned"]))
    machine.await_answer()
    machine.go.touch()

    (card,) = ended(job)["usage"]["gpus"]

    assert (card["peak_memory_bytes"], card["peak_use_percent"], card["mean_use_percent"]) == (512 * 2**20, None, None)


def so_far(job: Job) -> dict[str, Any]:
    """What is kept of a job that runs, once it has its memory."""
    usage = job.used()
    return usage if usage["peak_memory_bytes"] > 80 << 20 else {}


def kill(job: Job) -> None:
    os.kill(job.supervisor_pid(), signal.SIGKILL)


def cancel_and_kill(job: Job) -> None:
    supervisor = job.supervisor_pid()
    os.kill(supervisor, signal.SIGSTOP)
    (job.folder / "cancel").touch()
    os.kill(supervisor, signal.SIGKILL)


@pytest.mark.parametrize(("end", "kind"), [(kill, "lost"), (cancel_and_kill, "cancelled")], ids=["lost", "cancelled"])
def test_a_supervisor_that_dies_leaves_what_the_job_had_used_so_far(
    machine: Measured, end: Callable[[Job], None], kind: str
):
    job = machine.start(machine.job(BUSY))
    until(lambda: any(card["peak_memory_bytes"] for card in so_far(job).get("gpus", ())))

    end(job)

    outcome = ended(job)
    usage = outcome["usage"]
    assert (outcome["kind"], outcome["by"], usage["last_known"]) == (kind, "after", True)
    assert "now" not in usage
    assert usage["wall_s"] > 0 and usage["cpu_s"] > 0
    assert usage["peak_memory_bytes"] > 80 << 20
    assert [card["peak_use_percent"] for card in usage["gpus"]] == [97]


def test_a_job_whose_node_is_gone_leaves_what_it_had_used_so_far(bench: Bench, tmp_path: Path):
    job = bench.job("def f(go):\n" + BUSY, str(tmp_path / "go"), scheduler="slurm")
    script = job.start(SLURM_JOB_ID="77", PATH="/usr/bin:/bin")
    until(lambda: so_far(job))
    supervisor = job.supervisor_pid()
    for pid in (script.pid, supervisor):
        os.kill(pid, signal.SIGKILL)
    script.wait(150)

    job.call("conclude", stdin=json.dumps({"kind": "node", "message": "gone"}))

    outcome = job.outcome()
    assert (outcome["kind"], outcome["usage"]["last_known"]) == ("node", True)
    assert outcome["usage"]["cpu_s"] > 0 and outcome["usage"]["peak_memory_bytes"] > 80 << 20


def test_what_was_torn_by_a_crash_of_the_machine_is_not_reported(bench: Bench):
    job = bench.job("def f():\n    pass\n")
    job.attempt.mkdir(parents=True)
    (job.attempt / "usage.json").write_bytes(b'{"wall_s": 5.0, "cpu_s\0\0\0\0')

    job.call("after", "137")

    assert (job.outcome()["kind"], job.outcome()["usage"]) == ("lost", None)
