"""Jobs and groups of which no host is asked: they, or their items, end as the test says."""

from __future__ import annotations

from typing import Any

from clusterfn import Job, JobGroup
from clusterfn.calls.group_items import ItemOutcome
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.job import JobEntry, entry_of
from clusterfn.config.spec import ResultPolicy
from tests.fakes.taken import Taken


class Following(Taken):
    """What follows a job that can be withdrawn."""

    results, keeps = ResultPolicy(), False

    def __init__(self, is_fetched_apart: bool = False) -> None:
        self.is_fetched_apart = is_fetched_apart

    def withdraw(self) -> bool:
        return True


def job(digits: str = "7f3a", following: Any = None, kind: type[Job[Any]] = Job) -> tuple[JobEntry, Job[Any]]:
    """What is told of it, and what a user has."""
    made = kind(digits * 4, "train", "tensor01", f"/root/jobs/{digits * 4}", following or Following())
    return entry_of(made), made


def group(count: int) -> tuple[GroupState, JobGroup]:
    """What is told of it, and what a user has."""
    known = GroupState("7f3a000011112222", "train", "tensor01", "/root/jobs/7f3a", count)
    return known, JobGroup(known)


def end(known: GroupState, index: int, value: object) -> None:
    """Let an item return the value, or raise it."""
    outcome = ItemOutcome("RAISED", None, value) if isinstance(value, Exception) else ItemOutcome("RETURNED", value)
    known.items.end_item(index, outcome)


def ended(*values: object) -> JobGroup:
    known, made = group(len(values))
    for index, value in enumerate(values):
        end(known, index, value)
    return made
