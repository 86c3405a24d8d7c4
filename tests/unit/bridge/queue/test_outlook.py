"""What a machine says of a job that was not sent yet."""

import json
import os
import sys
from pathlib import Path

import pytest

from clusterfn.bridge.queue import gpu_leases, lease_names, machine, outlook
from clusterfn.bridge.queue.lease import Leases
from clusterfn.bridge.supervisor import gpus
from clusterfn.bridge.supervisor.eligible_gpus import GpuInfo

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the queue")
CORES = machine.cores() if sys.platform.startswith("linux") else 0


def asks(cores=1, **facts):
    resources = {"cores": cores, "gpus": 0, "memory_bytes": None}
    return {"scheduler": "bare", "limits": {}, "resources": resources, "priority": 0, "sent": {}, **facts}


@pytest.fixture
def nobody(monkeypatch):
    """No other job runs here, whatever runs beside this test."""
    monkeypatch.setattr(Leases, "binders", lambda _: {})


def test_a_job_starts_where_there_is_room_and_waits_behind_those_that_were_just_sent(tmp_path, nobody):
    root = str(tmp_path)
    sent = {"a" * 16: asks(CORES)["resources"]}

    assert outlook.outlook(root, asks(CORES)) == {"starts": True, "reason": "", "before": 0}
    waits = outlook.outlook(root, asks(1, sent=sent))

    assert not waits["starts"] and waits["before"] == 1
    assert waits["reason"] == "waiting for 1 free core; 1 job before it"


def test_the_agent_says_itself_only_that_a_job_can_start_where_no_other_counts(tmp_path, monkeypatch):
    held: dict[str, int] = {}
    monkeypatch.setattr(Leases, "binders", lambda _: dict(held))

    def starts(**facts):
        answer = outlook.starts_now(str(tmp_path), json.dumps(asks(**facts)).encode())
        assert answer is None or json.loads(answer) == outlook.outlook(str(tmp_path), asks(**facts))
        return answer is not None

    one = asks()["resources"]
    assert starts(cores=CORES) and not starts(cores=CORES + 1)
    assert not starts(resources=dict(one, gpus=1)) and not starts(sent={"a" * 16: one})
    other = os.getuid() + 1
    waits = machine.Waiting(1, other, "b" * 16, machine.Demand(0, 1, 0), machine.ANY, 0)
    for name in (lease_names.run(other, "b" * 16, machine.Demand(0, CORES, 0)),
                 lease_names.wait(waits, machine.now_s() + 9)):  # fmt: skip
        held[name] = other
        assert not starts()
        held.clear()
    held.update((lease_names.gpu(f"GPU-{number}"), other) for number in range(101))
    assert not starts()
    held.popitem()
    assert starts()
    (queue := Path(machine.folder(str(tmp_path)), "queue")).mkdir(parents=True)
    (queue / ("c" * 16)).touch()
    assert not starts() and list(queue.iterdir()), "who reads a ticket that is none removes it"


def test_a_job_that_has_begun_is_not_counted_twice(tmp_path, nobody):
    claimed = Path(tmp_path, "jobs", "a" * 16)
    claimed.mkdir(parents=True)
    (claimed / "claim").write_text("x")

    assert outlook.outlook(str(tmp_path), asks(CORES, sent={"a" * 16: asks(CORES)["resources"]}))["starts"]


def test_a_job_that_begins_during_the_question_is_counted_by_what_it_holds(tmp_path, monkeypatch):
    claimed = Path(tmp_path, "jobs", "a" * 16)
    claimed.mkdir(parents=True)

    def begins(_):
        assert not (claimed / "claim").exists()
        (claimed / "claim").write_text("x")
        return {}

    monkeypatch.setattr(Leases, "binders", begins)

    assert not outlook.outlook(str(tmp_path), asks(1, sent={"a" * 16: asks(CORES)["resources"]}))["starts"]


def test_a_job_that_has_its_name_and_not_yet_those_of_its_gpus_has_them(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "list_gpus", lambda *_: [GpuInfo(0, "GPU-1", "A6000", 49140, used_mib=0)])
    resources = {**asks()["resources"], "gpus": 1, "gpu_memory_bytes": None, "gpu_type": None}
    job = lease_names.run(os.getuid(), "a" * 16, machine.Demand(1, 0, 0))
    held: dict[str, int] = {}
    monkeypatch.setattr(Leases, "binders", lambda _: held)

    assert outlook.outlook(str(tmp_path), asks(resources=resources))["starts"]
    held[job] = os.getuid()
    assert not outlook.outlook(str(tmp_path), asks(resources=resources))["starts"]


def test_the_gpus_that_were_seen_are_for_one_job_that_comes_soon(tmp_path, monkeypatch):
    root, there = str(tmp_path), [GpuInfo(0, "GPU-1", "NVIDIA RTX A6000", 49140)]
    Path(machine.folder(root)).mkdir(parents=True)
    now = machine.now_ns()
    monkeypatch.setattr(machine, "now_ns", lambda: now)

    gpu_leases.keep_seen(root, there)
    assert [gpu_leases.take_seen(root), gpu_leases.take_seen(root)] == [there, []]
    gpu_leases.keep_seen(root, there)
    monkeypatch.setattr(machine, "now_ns", lambda: now + 6 * 10**9)
    assert gpu_leases.take_seen(root) == []
