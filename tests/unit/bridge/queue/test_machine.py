"""What is left of a machine, and whose a held card is, also when it changes hands."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.layout import HOLDS
from clusterfn.bridge.queue import lease_names, machine, report, tickets
from clusterfn.bridge.queue.lease_names import HeldNames
from clusterfn.bridge.queue.machine import (
    ANY,
    CORES,
    MEMORY,
    OWN,
    Demand,
    Kind,
    MachineResources,
    RemainingResources,
    UserLimits,
)
from clusterfn.bridge.queue.report import gpu_holders

NONE = UserLimits(None, None, None, None)


@pytest.mark.parametrize(("there", "available", "fits"), [(1000, 200, False), (1000, 400, True), (200, 400, False)])
def test_memory_is_bounded_by_what_is_there_and_by_what_is_available(there: int, available: int, fits: bool):
    room = RemainingResources(MachineResources(8, there, available), [], 1, NONE)

    assert room.lacks(Demand(0, 1, 300)) == ([] if fits else [MEMORY])


@pytest.mark.parametrize(
    ("limit", "used", "asked"), [("gpus", 2, 1), ("cores", 5, 3), ("memory_mb", 400, 90), ("jobs", 1, 1)]
)
def test_what_one_user_has_may_come_up_to_each_limit_and_not_above(limit: str, used: int, asked: int):
    running = [
        machine.Running(1, "own", Demand(2, 5, 400), False),
        machine.Running(2, "another's", Demand(3, 30, 3000), False),
    ]

    def over(most: int) -> list[str]:
        limits = UserLimits(None, None, None, None)._replace(**{limit: most})
        there = MachineResources(64, 9000, 9000, "abcdefgh")
        return RemainingResources(there, running, 1, limits).lacks(Demand(1, 3, 90))

    assert over(used + asked) == []
    assert over(used + asked - 1) == [OWN]


def test_all_that_run_count_together_and_so_does_who_was_let_in_just_now():
    running = [machine.Running(1, name, Demand(1, 1, 0), False) for name in "ab"]
    room = RemainingResources(MachineResources(8, 900, 900, "abcdefgh"), running, 1, UserLimits(4, None, None, None))

    assert room.over(Demand(2, 1, 0)) == []
    room.take(Demand(1, 1, 0))
    assert room.over(Demand(2, 1, 0)) == ["gpus"] and room.over(Demand(1, 1, 0)) == []


def test_who_holds_a_gpu_is_said_only_where_the_jobs_that_run_let_it_be_known():
    seen = lease_names.HeldNames(["gpu/a", "gpu/b", "run/1/x/2/1/0", "run/7/me/1/1/0"], 0, but=(7, "me"))
    assert seen.holders(["a", "b", "c"]) == {"a": 1, "b": 1}

    mixed = lease_names.HeldNames(["gpu/a", "gpu/b", "run/1/x/1/1/0", "run/2/y/1/1/0"], 0)
    assert sorted(mixed.holders(["a", "b"]).values()) == [1, 2]
    assert mixed.holders(["a"]) == {"a": -1}

    unknown = lease_names.HeldNames(["gpu/a", "gpu/b", "run/1/x/1/1/0"], 0)
    assert unknown.holders(["a", "b"]) == {"a": -1, "b": -1}


@pytest.mark.parametrize(
    ("waiting", "own", "left"),
    [
        ([(1, "ab")], "ab", 1),
        ([(1, "ab")], "a", 1),
        ([(1, "ab"), (1, "a")], "b", 0),
        ([(1, "a"), (1, "ab")], "b", 0),
        ([(3, "a")], "ab", 1),
        ([(2, "ab"), (1, "c")], "abcd", 1),
        ([(10**9, "d")], "abc", 3),
    ],
)
def test_of_the_free_gpus_those_are_kept_that_somebody_needs_and_no_more(waiting, own, left):
    room = RemainingResources(MachineResources(8, 1000, 1000, "abcd"), [], 1, NONE)
    for gpus, kind in waiting:
        room.reserve(Demand(gpus, 0, 0), list(kind))

    assert len(room.left(list(own))) == left
    assert not room.lacks(Demand(left, 0, 0), list(own)) and room.lacks(Demand(left + 1, 0, 0), list(own))


def test_who_waits_is_read_from_its_name_until_nothing_is_heard_for_too_long():
    waiting = machine.Waiting(5, 7, "aa", Demand(1, 2, 3), Kind("rtxa6000", 40960), 3)
    name = lease_names.wait(waiting, 60)

    assert lease_names.HeldNames([name, lease_names.wait(waiting, 80)], 59).waiting == [waiting]
    assert lease_names.HeldNames([name], 60).waiting == []


def test_a_name_that_would_be_too_long_says_that_any_gpu_will_do():
    kind = Kind("a" * 40, 81920)
    waiting = machine.Waiting(10**12, 10**9, "0123456789abcdef.123456", Demand(8, 64, 10**6), kind, 64)

    name = lease_names.wait(waiting, 10**9)

    assert len(f"clusterfn/{name}") <= 107
    assert lease_names.HeldNames([name], 10**9 - 1).waiting == [waiting._replace(kind=ANY)]


def test_on_ones_own_machine_jobs_share_the_cores_and_one_may_ask_for_any_number():
    spec: dict[str, Any] = {"scheduler": "local", "resources": {"cores": 1}}

    assert machine.limits_of(spec).cores == 4 * machine.cores()
    assert machine.limits_of({**spec, "resources": {"cores": 10**6}}).cores == 10**6
    assert machine.limits_of({**spec, "limits": {"cores": 2}}).cores == 2
    assert machine.limits_of({**spec, "scheduler": "bare"}).cores is None


def test_a_job_that_shares_the_cores_in_time_waits_for_none_and_keeps_none_from_others():
    two, four = MachineResources(2, 900, 900), NONE._replace(cores=4)
    job = Demand(0, 2, 0)
    running = lease_names.HeldNames([lease_names.run(1, "a", job, True), lease_names.run(1, "b", job)], 0).running

    assert RemainingResources(two, running[:1], 2, NONE).lacks(job) == []
    assert RemainingResources(two, running, 2, NONE).lacks(job) == [CORES]
    assert RemainingResources(two, running, 2, four).lacks(job) == []


LIMITS = machine.UserLimits._fields
MINE, ADA, BOB = os.getuid() if hasattr(os, "getuid") else 0, 990001, 990002


def held(*jobs, cards):
    """Jobs as (uid, id, how many cards) that run, and cards that are held."""
    return HeldNames([f"gpu/{card}" for card in cards] + [f"run/{uid}/{job}/{gpus}/1/0" for uid, job, gpus in jobs], 0)


def users(root, seen):
    return {uuid: told["user"] for uuid, told in gpu_holders(str(root), seen, MINE).items()}


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
