"""Whose a held card is, as far as the names of jobs, the journal and processes tell."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from clusterfn.bridge.layout import HOLDS
from clusterfn.bridge.queue import lease_names, machine, plan, report, tickets
from clusterfn.bridge.queue.lease_names import HeldNames
from clusterfn.bridge.queue.machine import ANY, Demand, MachineResources, UserLimits, Waiting
from clusterfn.bridge.queue.report import gpu_holders
from clusterfn.bridge.supervisor.gpus import GpuLoad, GpuProcess
from tests.unit.bridge.queue.test_plan import NONE, ticket

LIMITS = machine.UserLimits._fields
OWN, ADA, BOB = os.getuid() if hasattr(os, "getuid") else 0, 990001, 990002


def held(*jobs, cards):
    """Jobs as (uid, id, how many cards) that run, and cards that are held."""
    return HeldNames([f"gpu/{card}" for card in cards] + [f"run/{uid}/{job}/{gpus}/1/0" for uid, job, gpus in jobs], 0)


def users(root, seen, seen_on=None):
    return {uuid: told["user"] for uuid, told in gpu_holders(str(root), seen, OWN, seen_on or {}).items()}


def journal(root, *lines):
    folder = Path(machine.folder(str(root)))
    folder.mkdir(parents=True)
    (folder / HOLDS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_of_several_a_process_on_the_gpu_tells_and_counts(tmp_path):
    seen = held((ADA, "a", 1), (BOB, "b", 1), cards="12")

    assert users(tmp_path, seen) == {"1": f"{ADA} or {BOB}", "2": f"{ADA} or {BOB}"}
    on_card = {"2": [GpuProcess("python", "7", str(ADA))]}
    assert users(tmp_path, seen, on_card) == {"2": str(ADA), "1": str(BOB)}


def test_a_lease_without_a_holder_is_of_an_unknown_user(tmp_path):
    assert users(tmp_path, held(cards="1")) == {"1": "an unknown user"}


def write_tickets(root, jobs):
    queue = tickets.Queue(root)
    for place, job in enumerate(jobs, 1):
        queue.write({
            "job": job, "name": "f", "folder": root, "home": root, "element": None, "submitted": place, "t": 1.0,
            "reason": "", "asked": machine.Demand(0, 1, 0)._asdict(), "limits": dict.fromkeys(LIMITS),
            "resources": {"gpus": 0}, "queue_timeout_s": None, "bridge": root, "env": {},
        })  # fmt: skip
    return queue


@pytest.mark.skipif(not hasattr(os, "uname"), reason="hosts are no Windows machines")
def test_the_reasons_of_many_jobs_are_read_once(tmp_path, monkeypatch):
    root = str(tmp_path)
    jobs = [f"{number:016x}" for number in range(40)]
    queue = write_tickets(root, jobs)
    report.write_reasons(root, queue.read(), {job: f"why {job}" for job in jobs})
    read = []
    real = json.loads
    monkeypatch.setattr("json.loads", lambda text: read.append(text) or real(text))

    assert [report.reason_of(root, job) for job in jobs] == [f"why {job}" for job in jobs]
    assert len(read) == 2 * len(jobs), "each ticket, and each line of the report"

    report.write_reasons(root, queue.read(), {})
    assert report.reason_of(root, jobs[0]) == "its turn has come"


@pytest.mark.skipif(not hasattr(os, "uname"), reason="hosts are no Windows machines")
def test_a_list_of_the_queue_reads_only_the_tickets_that_the_spooler_has_not_reported(tmp_path, monkeypatch):
    root, jobs = str(tmp_path), [f"{number:016x}" for number in range(6)]
    reported = write_tickets(root, jobs[:4]).read()
    report.write_reasons(root, reported, {job: f"why {job}" for job in jobs})
    write_tickets(root, jobs[4:])
    tickets.Queue(root).remove(jobs[1])
    read = []
    monkeypatch.setattr(tickets.Queue, "of", lambda self, job, of=tickets.Queue.of: read.append(job) or of(self, job))

    waiting = report.waiting_jobs(root)

    whys = [f"why {job}" for job in jobs]
    assert [line["reason"] for line in waiting] == [whys[0], *whys[2:4], *["waiting for its turn"] * 2]
    assert sorted(read) == jobs[4:]
    assert [line["asked"]["cores"] for line in waiting] == [1] * 5


MEMORY = "MB of memory held by 990001 (900); waiting for 200 MB of free memory"
CORES, HELD = "cores held by 990001 (3); waiting for 2 free cores", "2 of 2 GPUs held by 990001 (2); waiting for 2"


@pytest.mark.parametrize(
    ("runs", "asked", "limits", "own", "of_another_user"),
    [
        ((0, 3, 0), (2, 2, 0), NONE, CORES, CORES),
        ((2, 0, 0), (2, 2, 0), NONE, HELD, "waiting for 2 GPUs"),
        ((2, 3, 0), (2, 2, 0), NONE, f"{HELD}; {CORES}", f"waiting for 2 GPUs; {CORES}"),
        ((0, 0, 900), (2, 2, 200), NONE, MEMORY, MEMORY),
        (
            (0, 0, 0),
            (2, 2, 0),
            UserLimits(1, None, None, None),
            "waiting for your own jobs: limits: {gpus: 1}",
            "its turn comes next",
        ),
    ],
    ids=["cores", "GPUs", "both", "memory", "the user's limits"],
)
def test_what_a_job_lacks_is_what_it_is_said_to_wait_for(
    tmp_path, monkeypatch, runs, asked, limits, own, of_another_user
):
    gpus = ["1", "2"]
    running = [f"gpu/{gpu}" for gpu in gpus[: runs[0]]] + [lease_names.run(ADA, "7f3a000011112222", Demand(*runs))]
    free = tuple(gpus[runs[0] :])
    view = plan.QueueView(
        MachineResources(4, 1000, 1000, free), HeldNames(running, 0), OWN, lambda kind: gpus,
        dict.fromkeys(gpus[: runs[0]], ADA), {},
    )  # fmt: skip
    assert plan.plan_starts([ticket("1", Demand(*asked), limits=limits)], view).reasons == {"1": own}

    waits = lease_names.wait(Waiting(5, BOB, "c0de000011112222", Demand(*asked), ANY, 0), machine.now_s() + 30)
    monkeypatch.setattr(report, "Leases", lambda: Mock(binders=lambda: dict.fromkeys([*running, waits])))
    loads = [GpuLoad(gpu, "NVIDIA RTX A6000", int(gpu), 49140, 0, 0, False) for gpu in gpus]
    monkeypatch.setattr(report.gpus, "gpu_loads", lambda: (loads, []))
    monkeypatch.setattr(report.gpus, "gpu_processes", dict)
    for name, amount in (("cores", 4), ("memory_mb", 1000), ("available_mb", 1000)):
        monkeypatch.setattr(machine, name, lambda amount=amount: amount)

    (job,) = report.look_at_gpus(str(tmp_path))["waiting"]
    assert job["reason"] == f"{of_another_user}; what becomes free is reserved for it"
