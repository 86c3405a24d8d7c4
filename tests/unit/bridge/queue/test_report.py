"""Whose a held card is, as far as the names of jobs, the journal and processes tell."""

import json
import os
from pathlib import Path

import pytest

from clusterfn.bridge.layout import HOLDS
from clusterfn.bridge.queue import machine, report, tickets
from clusterfn.bridge.queue.lease_names import HeldNames
from clusterfn.bridge.queue.report import gpu_holders

LIMITS = machine.UserLimits._fields
OWN, ADA, BOB = os.getuid() if hasattr(os, "getuid") else 0, 990001, 990002


def held(*jobs, cards):
    """Jobs as (uid, id, how many cards) that run, and cards that are held."""
    return HeldNames([f"gpu/{card}" for card in cards] + [f"run/{uid}/{job}/{gpus}/1/0" for uid, job, gpus in jobs], 0)


def users(root, seen):
    return {uuid: told["user"] for uuid, told in gpu_holders(str(root), seen, OWN).items()}


def journal(root, *lines):
    folder = Path(machine.folder(str(root)))
    folder.mkdir(parents=True)
    (folder / HOLDS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_where_nothing_says_which_of_several_users_holds_a_gpu_none_is_named(tmp_path):
    seen = held((ADA, "a", 1), (BOB, "b", 2), cards="12")

    assert users(tmp_path, seen) == dict.fromkeys("12", "an unknown user")
    assert users(tmp_path, held((ADA, "a", 2), cards="12")) == dict.fromkeys("12", str(ADA))


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
