"""`clusterfn cancel` withdraws jobs that wait, and ends those that run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from clusterfn.bridge.job_states import CANCELLED, SHORT
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls.attach import attach as find
from clusterfn.calls.group import JobGroup
from clusterfn.calls.job import Job, withdraw
from clusterfn.cli.command_line import error_facts
from clusterfn.cli.output import described, facts_of, has_ended
from clusterfn.cli.selection import ACTIVE, Selection, agreed, select
from clusterfn.display import console
from clusterfn.display.at_once import at_once
from clusterfn.errors import ClusterfnError
from clusterfn.hosts import spoken_wait

# Within this time, a machine without a scheduler has killed a job that does not end by itself. Of several jobs, each
# may wait for the others.
_END_S = 20.0
_END_OF_SEVERAL_S = 60.0


def cancel(args: argparse.Namespace) -> int:
    """Withdraw each job that has not started, or end a running one or a group; say which it was."""
    selection = select(args, "cancel", ACTIVE)
    if not agreed(selection, args, "cancel"):
        return 1
    most_s = _END_S if len(selection.jobs) == 1 else _END_OF_SEVERAL_S

    def end(job_id: str, host: str | None) -> dict[str, Any]:
        return _cancel(find(job_id, host), most_s)

    outcomes = _end_each(selection, end)
    if args.json:
        print(console.as_json(outcomes))
    elif not outcomes:
        console.tell("nothing to cancel: no such job is waiting or running")
    return 0 if all(outcome["ended"] for outcome in outcomes) else 1


def _end_each(selection: Selection, end: Callable[[str, str | None], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what `end` returns for each job.

    Warn of a failure and go on with the others; raise it if the command is about one job.
    """
    outcomes: list[dict[str, Any]] = []
    for (job_id, _), answer in zip(selection.jobs, at_once(selection.jobs, lambda job: end(*job), "cancelling jobs")):
        try:
            outcomes.append(answer.result())
        except ClusterfnError as error:
            if selection.single:
                raise
            console.warn(f"{job_id}: {error}")
            outcomes.append({"id": job_id, "ended": False, "error": error_facts(error)})
    return outcomes


def _cancel(job: Job[Any] | JobGroup[Any, Any], most_s: float) -> dict[str, Any]:
    """End it, and return what was done; wait for its end for so long."""
    if isinstance(job, Job) and withdraw(job):
        done = "was withdrawn before it started"
    elif has_ended(job):
        done = f"had already ended: {job.status}"
    else:
        job.stop()

        def describe() -> str:
            return f"waiting for {job.id[:SHORT]} to end: it is {described(job)}"

        if isinstance(job, JobGroup):
            is_over = spoken_wait.wait(job.wait, describe, most_s)
        else:
            is_over = spoken_wait.wait_for([job], describe, most_s)
        if not is_over:
            done = f"was asked to stop, and has not ended yet: it is {described(job)}"
        else:
            done = f"{'was stopped' if job.state == CANCELLED else 'has ended meanwhile'}: {job.status}"
    console.tell(f"{job.id} {job.name} on {job.host} {in_one_line(done)}")
    return {**facts_of(job), "ended": job.done(), "done": in_one_line(done)}
