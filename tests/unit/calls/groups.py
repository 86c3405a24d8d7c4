"""Groups of which no host is asked: their items end as the test says."""

from __future__ import annotations

from clusterfn import JobGroup
from clusterfn.calls.group_items import ItemOutcome
from clusterfn.calls.group_state import GroupState


def group(count: int, on_error: str = "collect") -> tuple[GroupState, JobGroup]:
    """What is told of it, and what a user has."""
    known = GroupState("7f3a000011112222", "train", "tensor01", "/root/jobs/7f3a", count, on_error)
    return known, JobGroup(known)


def end(known: GroupState, index: int, value: object) -> None:
    """Let an item return the value, or raise it."""
    failed = isinstance(value, Exception)
    known.end_item(
        index, ItemOutcome("RAISED" if failed else "RETURNED", None if failed else value, value if failed else None)
    )


def ended(*values: object, on_error: str = "collect") -> JobGroup:
    known, made = group(len(values), on_error)
    for index, value in enumerate(values):
        end(known, index, value)
    return made
