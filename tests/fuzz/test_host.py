"""What programs of a host print, and what lies in its folders, with damage in it: named errors, and no job ended."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fcntl")

from hypothesis import strategies as st

from clusterfn.bridge.queue import plan
from clusterfn.bridge.queue.lease_names import HeldNames
from clusterfn.bridge.queue.machine import MachineResources, gpus_of_kind
from clusterfn.bridge.queue.tickets import Queue
from clusterfn.bridge.supervisor import expire, listing
from clusterfn.bridge.supervisor import gpus as bridge_gpus
from clusterfn.bridge.supervisor.eligible_gpus import GpuInfo
from clusterfn.bridge.supervisor.process_tree import boot_id
from clusterfn.bridge.supervisor.verdict import AttemptEnded
from clusterfn.errors import ClusterfnError
from clusterfn.gpu import smi
from clusterfn.hosts import host_capacity
from clusterfn.hosts import survey as surveyed
from clusterfn.scheduler.bare import Bare
from clusterfn.scheduler.base import Answer, Evidence
from clusterfn.scheduler.site import Section
from clusterfn.scheduler.slurm import site as slurm_site
from clusterfn.scheduler.slurm.submit import Slurm
from tests.fuzz import damaged, fuzzed, twisted
from tests.golden.golden import recorded
from tests.golden.samples import SLURM

V = "slurm-22.05.8"
JOB = "7f3a000011112222"
SLURM_TEXTS = [recorded(f"{V}/{name}.txt").encode() for name in ("squeue", "scontrol-oom", "scontrol-array", "log-oom")]
SLURM_TEXTS += [
    b"MaxArraySize            = 1001\nMaxJobCount             = 10000\n",
    b"PartitionName=short AllowGroups=ALL Default=YES MaxTime=1-02:00:00 State=UP\n",
    b"40|100\nmain*|up|1:00:00|2|gpu:a100:4(S:0-1)\nphysics||normal|10|20|1-00:00:00|cpu=4\n",
    b"NodeName=n1 Gres=gpu:a100:4 GresUsed=gpu:a100:1(IDX:0) State=MIXED\n12|ann|gpu:2|Priority|x|2\n",
]
BOOT = "11111111-2222-3333-4444-555555555555"
BARE_TEXTS = [
    f"train.{JOB}|PENDING|2 of 2 GPUs held by ann (2)\n".encode(),
    f"{BOOT}\n77 (a b) c) S 1 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1\n".encode(),
]
SMI_TEXTS = [
    b"00000000:01:00.0, 0, GPU-1, 49140, NVIDIA RTX A6000\n00000000:02:00.0, 1, GPU-2, [N/A], NVIDIA, Inc. A100\n",
    b"00000000:01:00.0, 0, 49140, 3, 100, GPU-1, NVIDIA RTX A6000\n", b"GPU-1, 812\nGPU-2, 3\n",
    b"GPU-1, 4242, /usr/bin/python3\nGPU-2, 1, [Not Found]\n", b"GPU-1, NVIDIA RTX A6000, 812, 100\n",
    b"0, GPU-1, 49140, NVIDIA RTX A6000\n", b"0, GPU-1, NVIDIA RTX A6000, 49140, 812, 100, 575.57.08, 8.6\n",
    b"NVIDIA RTX A6000, 49140, 575.57.08, 8.6\n", b"Failed to initialize NVML: Driver/library version mismatch\n",
]  # fmt: skip
SPEC = {
    "format": 1, "id": JOB, "name": "train", "host": "box", "scheduler": "bare", "root": "/r", "bridge": "/r/bridge/1",
    "resources": {"cores": 2, "memory_bytes": 2**30, "gpus": 1}, "keep_days": 14.0,
}  # fmt: skip
OUTCOME = {"format": 1, "job": JOB, "attempt": 1, "kind": "returned", "final": True, "message": "", "earlier": []}
EVENTS = [{"n": 1, "event": "pending", "t": 1.0, "reason": "x"}, {"n": 2, "event": "running", "t": 2.0, "node": "n1"}]
TICKET = {
    "format": 1, "job": JOB, "name": "train", "folder": f"/r/jobs/{JOB}", "home": f"/r/jobs/{JOB}", "element": None,
    "submitted": 10**15, "t": 1e9, "reason": "", "asked": {"gpus": 1, "cores": 2, "memory_mb": 10},
    "limits": {"gpus": 4, "cores": None, "memory_mb": None, "jobs": 20}, "queue_timeout_s": 60.0,
    "resources": {"cores": 2, "memory_bytes": 2**30, "gpus": 1, "gpu_type": "a6000", "gpu_memory_bytes": None},
    "bridge": "/r/bridge/1", "env": {"A": "b"}, "boot": boot_id(),
}  # fmt: skip
NAMES = [
    b"gpu/GPU-1", b"run/1000/7f3a000011112222/1/2/1024",
    b"wait/1000/123456/999/1/2/1024/7f3a000011112222~2/a6000/48000", b"spool/1000/x", b"door", b"wait/1/2/3/4/5/6",
]  # fmt: skip


def read_as_slurms(text: str) -> None:
    """Read a text by everything that reads what SLURM's programs print."""
    slurm = Slurm(SLURM, "ada")
    for state in slurm.parse_states(text).values():
        state.hopeless("hpc")
        assert isinstance(state.in_words, str)
    slurm.trouble(Answer(rc=0, out=text, err=text))
    slurm.explain(Evidence(text, text, "17"))
    with contextlib.suppress(ClusterfnError):
        slurm.submitted(Answer(1, text, text))
    slurm_site.read_limits([text, text, text], None)
    slurm_site.gpu_types(text)
    slurm_site.gpu_nodes(text)
    slurm_site.waiting_for_gpus(text)
    slurm_site.read_partitions(text.splitlines())
    slurm_site.read_accounts(text.splitlines())


def read_as_a_machines(text: str) -> None:
    """Read a text by everything that reads what a machine without a scheduler says of its jobs."""
    bare = Bare(BOOT)
    for state in bare.parse_states(text).values():
        assert isinstance(state.in_words, str)
    bare.trouble(Answer(rc=1, out=text, err=text))
    bare.explain(Evidence(text, text, f"{BOOT}:77:4242"))
    bare.evidence_command(text)


@fuzzed(data=damaged(SLURM_TEXTS))
def test_slurms_programs_are_read_whatever_they_print(data: bytes) -> None:
    read_as_slurms(data.decode("utf-8", "replace"))


@fuzzed(data=damaged(BARE_TEXTS))
def test_a_bare_hosts_answers_are_read_whatever_they_are(data: bytes) -> None:
    read_as_a_machines(data.decode("utf-8", "replace"))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What nvidia-smi prints, once it is put there."""
    said: list[str] = [""]
    monkeypatch.setattr(bridge_gpus, "run_nvidia_smi", lambda argv: said[0])
    monkeypatch.setattr(bridge_gpus, "AGAIN_S", 0)
    return said


@fuzzed(data=damaged(SMI_TEXTS))
def test_nvidia_smi_is_read_or_said_to_fail(data: bytes, answers: list[str]) -> None:
    answers[0] = text = data.decode("utf-8", "replace")
    readers: list[Callable[[], Any]] = [
        bridge_gpus.list_gpus, bridge_gpus.gpu_loads, bridge_gpus.gpu_processes,
        lambda: bridge_gpus.used_by_others(["GPU-1"]),
    ]  # fmt: skip
    for read in readers:
        with contextlib.suppress(AttemptEnded):
            read()
    bridge_gpus.GpuUsageMonitor(["GPU-1"], []).read_answer(text)
    host_capacity.read_gpus(text, 1024)
    surveyed.read_gpus(Section("gpus", 0, text.splitlines()))
    smi.read_rows(text)


@fuzzed(name=damaged([b"python3", b"/opt/a b, c/python"]))
def test_no_name_of_a_process_ends_a_job(name: bytes, answers: list[str]) -> None:
    """Any user of the machine chooses names; a row can be forged by one, but never broken."""
    answers[0] = f"GPU-1, {os.getpid()}, {name.decode('utf-8', 'replace')}\nGPU-2, 1, b\n"

    found = bridge_gpus.gpu_processes()

    assert found["GPU-1"][0].pid == str(os.getpid())
    assert "GPU-2" in found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "jobs" / JOB / "attempts" / "1").mkdir(parents=True)
    return tmp_path


@fuzzed(0.2, spec=twisted([SPEC]), outcome=twisted([OUTCOME]), events=twisted([EVENTS]), torn=damaged([b"{}", b"[1]"]))
def test_a_damaged_job_hides_no_other_and_is_kept(
    spec: Any, outcome: Any, events: Any, torn: bytes, root: Path
) -> None:
    job = root / "jobs" / JOB
    attempt = job / "attempts" / "1"
    attempt.mkdir(parents=True, exist_ok=True)
    (job / "spec.json").write_text(json.dumps(spec))
    (attempt / "outcome.json").write_text(json.dumps(outcome))
    lines = [json.dumps(event) for event in events] if isinstance(events, list) else [json.dumps(events)]
    (attempt / "events.jsonl").write_bytes("\n".join(lines).encode() + b"\n" + torn)

    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert listing.listing(str(root)) == 0
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    with contextlib.redirect_stderr(io.StringIO()):
        expire.tidy(str(root), 0.0, 14 * 86400.0)

    assert len(told) == 1
    assert job.exists()


@fuzzed(0.2, told=twisted([TICKET]), held=st.lists(damaged(NAMES), max_size=6))
def test_no_ticket_and_no_name_ends_the_spooler(told: Any, held: list[bytes], root: Path) -> None:
    queue = Queue(str(root))
    Path(queue.folder).mkdir(parents=True, exist_ok=True)
    (Path(queue.folder) / JOB).write_text(json.dumps(told))
    seen = HeldNames({name.decode("ascii", "replace") for name in held}, 0)
    every = [GpuInfo(0, "GPU-1", "NVIDIA RTX A6000", 49140)]
    view = plan.QueueView(
        MachineResources(4, 1000, 1000, ["GPU-1"]), seen, 1, lambda kind: gpus_of_kind(kind, every), {}, {}
    )

    made = plan.plan_starts(queue.read(), view)

    assert {each.job for each in made.start} <= {JOB}
    shutil.rmtree(queue.folder)
