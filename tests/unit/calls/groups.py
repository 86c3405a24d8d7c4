"""Jobs and groups of which no host is asked: they, or their items, end as the test says."""

from __future__ import annotations

from typing import Any

from clusterfn import Job, JobGroup
from clusterfn.calls.group_items import ItemOutcome
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.job_run import JobRun, OutputSource
from tests.fakes.taken import run


def job(digits: str = "7f3a", keeps: bool = False, kind: type[Job[Any]] = Job) -> tuple[JobRun, Job[Any]]:
    """What is told of it, and what a user has."""
    its_run = run(digits * 4, keeps=keeps)
    return its_run, kind(its_run, OutputSource())


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
