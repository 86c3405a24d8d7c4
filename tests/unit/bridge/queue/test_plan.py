"""Who of one user's waiting jobs may start, and at which one turn looks: pure, without a machine."""

from __future__ import annotations

import os
from typing import Any

import pytest

from clusterfn.bridge.queue import plan
from clusterfn.bridge.queue.lease_names import HeldNames
from clusterfn.bridge.queue.machine import ANY, Demand, Kind, MachineResources, UserLimits, gpus_of_kind
from clusterfn.bridge.queue.tickets import Ticket
from clusterfn.bridge.supervisor.eligible_gpus import GpuInfo

NONE = UserLimits(None, None, None, None)


def ticket(job: str, asked: Demand, **more: Any) -> Ticket:
    facts: dict[str, Any] = dict.fromkeys(Ticket._fields)
    return Ticket(**{**facts, "job": job, "asked": asked, "limits": NONE, "ms": int(job), "kind": ANY, **more})


def view_of(cores: int, cards: tuple[str, ...] = (), names: tuple[str, ...] = (), held: str = "") -> plan.QueueView:
    """With these cards free, and these held; one with a large letter is an A100."""
    machine = MachineResources(cores, 1000, 1000, cards)
    holders = dict.fromkeys(held, 990007)
    every = [
        GpuInfo(0, name, "NVIDIA A100" if name.isupper() else "NVIDIA RTX A6000", 49140) for name in [*held, *cards]
    ]
    return plan.QueueView(
        machine, HeldNames(names, 0), 1, lambda kind: gpus_of_kind(kind, every), holders, unleased={},
    )  # fmt: skip


def planned(tickets: list[Ticket], *view: Any, **more: Any) -> plan.StartPlan:
    """As on a machine like this."""
    return plan.plan_starts(tickets, view_of(*view, **more))


def started(made: plan.StartPlan) -> list[str]:
    return [each.job for each in made.start]


def test_a_job_for_more_gpus_than_there_are_starts_so_that_its_supervisor_refuses_it():
    assert [started(planned([ticket("1", Demand(n, 1, 0))], 8, ("a",), held="c")) for n in (2, 3)] == [[], ["1"]]


def test_a_job_for_some_gpus_only_is_not_named_while_it_waits_as_others_would_keep_every_gpu_for_it():
    waiting = [ticket("1", Demand(1, 1, 0), kind=Kind("", 0, ("a",)))]
    made = planned(waiting, cores=4, cards=("b",), held="a")

    assert started(made) == []
    assert made.named == []


def test_the_reason_says_for_whom_the_free_gpus_are_kept():
    job, older = ticket("5", Demand(1, 1, 0)), "wait/990008/4/60/4/1/0/x~0//0"

    made = planned([job], 8, ("e", "f"), (older,), held="abcd")
    kept = "the others reserved for 990008's earlier 4-GPU job; waiting for 1; 1 job before it; 990008 is next"
    assert made.reasons["5"] == f"4 of 6 GPUs held by 990007 (4), {kept}"
    made = planned([job], 8, ("e", "f"), (older,))
    kept = "2 of 2 GPUs reserved for 990008's earlier 4-GPU job"
    assert made.reasons["5"] == f"{kept}; waiting for 1; 1 job before it; 990008 is next"


def test_the_reason_counts_the_gpus_that_are_kept_for_several_and_leaves_out_those_of_whom_comes_later():
    mine = [ticket("3", Demand(3, 1, 0)), ticket("5", Demand(3, 1, 0))]
    others = ("wait/990008/2/60/1/1/0/x~0//0", "wait/990009/6/60/1/1/0/y~0//0", "run/990009/z/4/1/0")
    made = planned(mine, 8, ("e", "f", "g"), others, held="a")

    kept = "1 of the others reserved for 990008's earlier 1-GPU job; waiting for 3; 1 job before it; 990008 is next"
    assert made.reasons["3"] == f"1 of 4 GPUs held by 990007 (1), {kept}"
    jobs = f"990008's earlier 1-GPU job and {plan.user_name(1)}'s earlier 3-GPU job"
    kept = f"the others reserved for {jobs}; waiting for 3; 2 jobs before it; 990008 is next"
    assert made.reasons["5"] == f"1 of 4 GPUs held by 990007 (1), {kept}"


def test_the_reason_names_who_holds_what_a_job_lacks():
    me = os.geteuid()
    view = view_of(9, names=(f"run/{me}/m/0/1/0", "run/990008/x/0/8/0", "run/990009/y/0/0/5"), held="abcd")
    view.holders = {"a": me, "b": -1, "c": 990007, "d": 990007}
    view.pids = {"d": 812}

    made = plan.plan_starts([ticket("5", Demand(1, 0, 0)), ticket("6", Demand(0, 1, 0))], view)

    held = "4 of 4 GPUs held by 990007 (2), an unknown user (1), you (1)"
    assert made.reasons["5"] == f"{held}; 990007 holds GPUs for no job of clusterfn (pid 812); waiting for 1"
    assert made.reasons["6"].startswith("cores held by you (1), 990008 (8); waiting for 1 free core")


A100, A6000 = Kind("a100", 0), Kind("a6000", 0)


@pytest.mark.parametrize(("theirs", "starts"), [(3, []), (5, ["5"])])
def test_who_holds_less_now_comes_first_in_whatever_order_they_came(theirs: int, starts: list[str]):
    names = ("run/1/7/4/1/0", f"run/2/6/{theirs}/1/0", "wait/2/9/60/1/1/0/x~0//0")
    made = planned([ticket("5", Demand(1, 1, 0))], 8, ("h",), names, "abcdefg")

    assert started(made) == starts
    if not starts:
        said = f"2 is next, who holds {theirs} GPUs and 1 core (you: 4 GPUs and 1 core)".replace("2 is", "bin is")
        assert made.reasons["5"].replace(f"{plan.user_name(1)}", "you").endswith(said)


def test_a_user_who_has_just_had_a_turn_comes_after_who_has_been_next_for_longer():
    """Else many small jobs that were sent before a large one would keep it waiting to their end."""
    mine, large = [ticket("5", Demand(0, 1, 0))], "wait/2/9/60/0/4/0/x~0//0"
    view = view_of(4, names=(large,))
    view.now_ms = 10
    assert started(plan.plan_starts(mine, view)) == []

    view = view_of(4, names=(large, "wait/1/8/60/0/1/0/5~0//0"))
    view.now_ms = 10
    assert started(plan.plan_starts(mine, view)) == ["5"], "it has been next since before that job"


def test_a_job_of_higher_priority_takes_over_since_when_the_one_behind_it_was_next():
    before, behind = ticket("7", Demand(0, 2, 0)), ticket("5", Demand(0, 2, 0))
    view = view_of(1, names=("wait/1/5/60/0/2/0/5~0//0",))
    view.now_ms = 100

    made = plan.plan_starts([before, behind], view)

    assert (made.named, made.since_ms) == ([before], {"7": 5, "5": 100})


def test_ones_own_jobs_that_are_next_before_it_count_for_a_job():
    names = ("wait/1/3/60/0/1/0/x~0//0", "wait/2/9/60/0/1/0/y~0//0")

    assert started(planned([ticket("5", Demand(0, 1, 0))], 2, names=names)) == []
    assert started(planned([ticket("5", Demand(0, 1, 0))], 3, names=names)) == ["5"]


def test_two_jobs_of_one_user_that_are_next_at_once_have_different_times_in_their_order():
    view = view_of(1, held="a")
    view.now_ms = 50

    made = plan.plan_starts([ticket("9", Demand(1, 1, 0)), ticket("3", Demand(0, 2, 0))], view)

    assert ([each.job for each in made.named], made.since_ms) == (["9", "3"], {"9": 50, "3": 51})


def test_a_job_that_has_begun_leaves_its_time_to_none_of_the_next():
    names = ("run/1/5/0/1/0", "wait/1/5/60/0/1/0/5~0//0", "wait/1/9/60/0/2/0/7~0//0")

    made = planned([ticket("5", Demand(0, 1, 0)), ticket("7", Demand(0, 2, 0))], 2, names=names)

    assert made.since_ms["7"] == 9


@pytest.mark.parametrize(("own", "starts"), [(1, ["5"]), (2, [])])
def test_further_jobs_of_another_user_come_first_until_they_count_more_than_ones_own(own: int, starts: list[str]):
    names = ("wait/2/9/60/0/1/0/x~1//0", f"run/1/7/0/{own}/0")
    mine = [ticket("5", Demand(0, 1, 0))]

    assert started(planned(mine, 2 + own, names=names)) == starts


@pytest.mark.parametrize(("own", "why"), [(0, ""), (1, "bin waits, who holds less of the machine")])
def test_an_element_gives_way_only_to_who_would_then_hold_less(own: int, why: str):
    element = ticket("5", Demand(0, 1, 0), element=1)._replace(job="5.1")
    names = ("wait/2/9/60/0/1/0/x~0//0", f"run/1/7/0/{own}/0")

    assert plan.must_yield(element, view_of(1 + own, names=names)) == why
    assert not plan.must_yield(element, view_of(2 + own, names=names)), "there is room for both"


def test_ones_own_job_that_waits_makes_no_element_give_way():
    element = ticket("5", Demand(0, 2, 0), element=1)._replace(job="5.1")
    names = ("wait/2/9/60/0/1/0/x~0//0", "wait/1/8/60/0/1/0/8~0//0", "run/1/7/0/1/0")

    assert plan.must_yield(element, view_of(4, names=names)) == "", "there is room for the other user's job"


def test_an_element_with_a_gpu_gives_way_to_who_can_have_this_gpu_alone():
    element = ticket("5", Demand(1, 1, 0), element=1, kind=A100)._replace(job="5.1")
    names = ("wait/2/9/60/1/1/0/x~0/{}/0", "run/1/7/1/1/0")
    for kind, why in ("a100", "bin waits, who holds less of the machine"), ("a6000", ""):
        view = view_of(8, ("E",), (names[0].format(kind), names[1]), "aB")

        assert plan.must_yield(element, view) == why


def test_jobs_with_gpus_start_one_after_another_and_the_others_beside_them():
    waiting = [ticket("1", Demand(1, 1, 0)), ticket("2", Demand(1, 1, 0)), ticket("3", Demand(0, 1, 0))]

    assert started(planned(waiting, 8, ("e", "f"))) == ["1", "3"]
