"""`clusterfn top`: what clusterfn runs on a machine and for whom, look after look, at little cost to the host."""

from __future__ import annotations

import json
import os
import pwd
import select
import subprocess
import sys

import pytest

from clusterfn.bridge.queue import lease_names, overview, report
from clusterfn.bridge.queue.machine import ANY, Demand, Waiting
from clusterfn.bridge.supervisor import listing


def printed(capfdbinary):
    return [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Jobs of which one has ended; each look at a job's folder is remembered."""
    looked: list[str] = []
    for digit in "123":
        (tmp_path / "jobs" / (digit * 16)).mkdir(parents=True)

    def describe(folder):
        looked.append(os.path.basename(folder)[0])
        state = "RETURNED" if folder.endswith("2") else "RUNNING"
        return {"id": os.path.basename(folder), "state": state}

    monkeypatch.setattr(listing, "describe", describe)
    monkeypatch.setattr(overview.select, "select", lambda *_: ([], [], []))
    read = os.read
    monkeypatch.setattr(overview.os, "read", lambda fd, size: read(fd, size) if fd else b"\n")  # asks for the next look
    return tmp_path, looked


def test_own_jobs_that_have_not_ended_are_looked_at_again_and_the_others_never(root, capfdbinary):
    folder, looked = root

    assert overview.print_looks(str(folder), True, 2.0, 3) == 0

    assert [[job["id"][0] for job in look["own"]] for look in printed(capfdbinary)] == [["1", "3"]] * 3
    assert "".join(looked) == "123" + "13" * 2


def test_a_client_that_takes_no_look_brings_no_further_one(tmp_path):
    code = "import sys; from clusterfn.bridge.queue import overview; overview.print_looks(sys.argv[1], True, 0.01, 0)"
    argv = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as program:
        assert program.stdin is not None and program.stdout is not None
        for _ in range(3):
            assert json.loads(program.stdout.read(65536))["own"] == []
            assert not select.select([program.stdout], [], [], 0.3)[0]
            program.stdin.write(b"\n")
        program.stdin.close()
        assert program.wait(60) == 0


def test_nvidia_smi_is_asked_less_often_than_the_other_facts_of_a_machine(root, capfdbinary, monkeypatch):
    folder, _ = root
    asked = []
    found = {"gpus": [{"uuid": "GPU-1"}], "lost": [], "waiting": [], "trouble": ""}
    monkeypatch.setattr(overview.report, "look_at_gpus", lambda *_: asked.append(1) or found)

    overview.print_looks(str(folder), False, 2.0, 2)

    first, second = printed(capfdbinary)
    assert second["gpus"] == found["gpus"] and len(asked) == 1
    assert first["machine"]["cores"] == os.cpu_count() and "jobs" in first


ME = pwd.getpwuid(os.getuid()).pw_name
NAMES = [
    lease_names.run(os.getuid(), "7f3a000011112222", Demand(2, 4, 8192)),
    lease_names.run(4_000_000, "90aa000011112222.3", Demand(0, 1, 0)),
    lease_names.wait(Waiting(5, os.getuid(), "c0de000011112222", Demand(1, 1, 512), ANY, 0), 550),
    lease_names.wait(Waiting(5, 4_000_000, "too-old-to-count", Demand(1, 1, 512), ANY, 0), 10),
    "door", "gpu/GPU-1", "run/nonsense",
]  # fmt: skip


def test_the_jobs_of_all_users_are_listed_with_what_they_asked_for():
    words = ("user", "job", "state", "gpus", "cores", "memory_mb")
    rows = [
        (ME, "7f3a000011112222", "RUNNING", 2, 4, 8192),
        ("4000000", "90aa000011112222.3", "RUNNING", 0, 1, 0),
        (ME, "c0de000011112222", "PENDING", 1, 1, 512),
    ]
    assert report.look_at_jobs(NAMES, 500) == [dict(zip(words, row)) for row in rows]


def test_who_waits_is_listed_in_the_order_in_which_they_come():
    names = [
        lease_names.wait(Waiting(5, 4_000_000, "aaaa000011112222", Demand(1, 1, 0), ANY, 0), 550),
        lease_names.wait(Waiting(9, 4_000_001, "bbbb000011112222", Demand(1, 1, 0), ANY, 0), 550),
        lease_names.run(4_000_000, "cccc000011112222", Demand(2, 1, 0)),
        lease_names.run(4_000_001, "dddd000011112222", Demand(1, 1, 0)),
    ]

    assert [row["job"][:4] for row in report.look_at_jobs(names, 500)] == ["cccc", "dddd", "bbbb", "aaaa"]


def test_a_name_that_another_user_has_bound_is_no_job():
    assert report.look_at_jobs(dict.fromkeys(NAMES[1:2], 4_000_009), 500) == []
