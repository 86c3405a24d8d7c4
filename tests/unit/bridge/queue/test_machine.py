"""What is left of a machine, and cards that change hands because a stranger is on one."""

from __future__ import annotations

from typing import Any

import pytest

from clusterfn.bridge.queue import lease_names, machine
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
def test_of_the_free_gpus_those_are_kept_that_somebody_needs_and_no_more(
    waiting: list[tuple[int, str]], own: str, left: int
):
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
