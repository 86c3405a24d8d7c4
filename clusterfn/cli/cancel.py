"""`clusterfn cancel`: withdraw jobs that wait, and end those that run."""

from __future__ import annotations

import argparse
from typing import Any

from clusterfn.bridge.job_states import CANCELLED, SHORT
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls import console
from clusterfn.calls.attach import attach as find
from clusterfn.calls.group import JobGroup
from clusterfn.calls.job import Job
from clusterfn.cli import screen
from clusterfn.cli.complaint import error_facts
from clusterfn.cli.output import described, facts_of, has_ended
from clusterfn.cli.selection import ACTIVE, select
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import spoken_wait

_END_S = 20.0  # a machine without a scheduler has ended by then what does not end itself


def cancel(given: argparse.Namespace) -> int:
    """Withdraw each job that has not started, or end a running one or a group; say which it was."""
    selection = select(given, "cancel", ACTIVE)
    told: list[dict[str, Any]] = []
    for job_id, host in selection.jobs:
        try:
            told.append(_cancel(find(job_id, host)))
        except ClusterfnError as error:
            if selection.single:
                raise
            console.warn(f"{job_id}: {error}")  # the others are ended all the same
            told.append({"id": job_id, "ended": False, "error": error_facts(error)})
    if given.json:
        print(screen.as_json(told))
    elif not told:
        console.tell("nothing to cancel: no such job is waiting or running")
    return 0 if all(each["ended"] for each in told) else 1


def _cancel(job: Job[Any] | JobGroup[Any, Any]) -> dict[str, Any]:
    """End it, and return what was done."""
    if isinstance(job, Job) and job.cancel():
        done = "was withdrawn before it started"
    elif has_ended(job):
        done = f"had already ended: {job.status}"
    else:
        job.stop()
        if not _await_end(job):
            done = f"was asked to stop, and has not ended yet: it is {described(job)}"
        else:
            done = f"{'was stopped' if job.state == CANCELLED else 'has ended meanwhile'}: {job.status}"
    console.tell(f"{job.id} {job.name} on {job.host} {in_one_line(done)}")
    return {**facts_of(job), "ended": job.done(), "done": in_one_line(done)}


def _await_end(job: Job[Any] | JobGroup[Any, Any]) -> bool:
    """Wait until it has ended, and say meanwhile what it waits for; return whether it has."""

    def describe() -> str:
        return f"waiting for {job.id[:SHORT]} to end: it is {described(job)}"

    if isinstance(job, JobGroup):
        return spoken_wait.wait(job.wait, describe, _END_S)
    return spoken_wait.wait_for([job], describe, _END_S)
