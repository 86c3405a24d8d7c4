"""Who of one user's waiting jobs may start: pure, without a machine."""

from __future__ import annotations

from typing import Any

from clusterfn.bridge.spooler import plan, words
from clusterfn.bridge.spooler.demand import Demand, Limits
from clusterfn.bridge.spooler.names import Seen
from clusterfn.bridge.spooler.room import Machine
from clusterfn.bridge.spooler.tickets import Ticket

NONE = Limits(None, None, None, None)


def ticket(job: str, asked: Demand, **more: Any) -> Ticket:
    facts: dict[str, Any] = dict.fromkeys(Ticket._fields)
    return Ticket(**{**facts, "job": job, "asked": asked, "limits": NONE, "ms": int(job), **more})


def planned(tickets: list[Ticket], cores: int, cards: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> plan.Plan:
    machine = Machine(cores, 1000, 1000, cards)
    view = plan.View(
        machine, Seen(names), 1, set(), set(), lambda _: list(cards), lambda kind: words.Around(kind, {}, {})
    )
    return plan.plan(tickets, view)


def started(made: plan.Plan) -> list[str]:
    return [each.job for each in made.start]


def test_the_first_of_each_line_reserves():
    waiting = [ticket("1", Demand(1, 1, 0)), ticket("2", Demand(0, 4, 0)), ticket("3", Demand(0, 1, 0))]

    assert started(planned(waiting, cores=4)) == []
    assert started(planned(waiting, cores=5)) == ["2"]
    assert started(planned([waiting[0], waiting[2]], cores=4)) == ["3"]


def test_another_users_older_job_keeps_its_part_and_a_younger_does_not():
    job = [ticket("5", Demand(1, 1, 0))]

    assert started(planned(job, 4, ("a", "b"), ("wait/2/4/2/1/0/x",))) == []
    assert started(planned(job, 4, ("a", "b"), ("wait/2/6/2/1/0/x",))) == ["5"]


def test_jobs_with_cards_come_one_after_another_and_what_the_next_needs_is_kept_for_it():
    waiting = [ticket("1", Demand(1, 1, 0)), ticket("2", Demand(1, 1, 0)), ticket("3", Demand(0, 1, 0))]
    made = planned(waiting, cores=2, cards=("a", "b"))

    assert started(made) == ["1"]
    assert made.reasons["2"] == "1 job before it" and "2" in [each.job for each in made.named]
    assert started(planned(waiting, cores=3, cards=("a", "b"))) == ["1", "3"]
    assert started(planned(waiting, 8, ("a", "b"), ("run/1/1/1/1/0",))) == ["3"]
