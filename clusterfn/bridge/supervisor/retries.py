"""Decide what `retries=` retries and `requeue=` requeues: which causes, how often, with which message.

An attempt that was followed by another says so in its outcome (`retried` or `requeued`), so the count outlives every
process. After a requeue, `time` applies to each attempt, and the checkpoint folder is the same for all.
"""

import time

from .. import layout
from ..layout import EXIT_PUBLISHED, EXIT_QUEUED, LOST, NODE, PREEMPTED, RAISED, SUPERSEDED, TAKEN_BACK, TIME
from .attempt import Attempt
from .text import shortened
from .verdict import EXIT_LEFT_TO_AFTER, Verdict
from .watch import KILL_WAIT_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .job import JobFolder
    from .run import AttemptRun

_SHOWN = 300
TIMEOUT, PREEMPTION, NODE_LOSS = "timeout", "preempted", "node"
_DONE = {TIMEOUT: "ran out of time", PREEMPTION: "was preempted", NODE_LOSS: "was interrupted"}


def allowed(job: "JobFolder") -> int:
    """Return how often it may be run again."""
    return int(job.spec.get("retries") or 0)


def are_left(job: "JobFolder", used: int) -> bool:
    """Whether it may be run once more after so many retries."""
    return used < allowed(job)


def passes(verdict: Verdict) -> bool:
    """Whether the function raised what the table of CUDA's errors says to pass, as the worker has looked up.

    So does the death of a supervisor on another node of the job, but not the end of a job that was asked to end.
    """
    if verdict.kind == LOST:
        return verdict.stage == "supervisor" and not verdict.asked
    return verdict.kind == RAISED and bool(verdict.transient)


def superseding(verdict: Verdict, message: str, by: int, uuids: "list[str]") -> Verdict:
    """The outcome of an attempt that failed and is followed by attempt `by`; its own error stays in it."""
    retried = {"kind": verdict.kind, "cause": (verdict.transient or {}).get("name"), "cards": suspects(verdict, uuids)}
    evidence = verdict.evidence or []
    return verdict.replace(
        kind=SUPERSEDED, message=message, superseded_by=by, value=None, evidence=evidence, retried=retried
    )


def suspects(verdict: Verdict, uuids: "list[str]") -> "list[str]":
    """The GPUs that may be to blame: none where the same call may succeed in the same place."""
    return uuids if (verdict.transient or {}).get("retry") == "new process" else []


def in_words(number: int, where: str, why: str, used: int, of: int) -> str:
    """What people read about an attempt that is followed by another.

    Args:
        where: Its GPUs, or the node; "" if that has no part in it.
        used: How often it has been retried, this time included.
        of: How often it may be.
    """
    place = " on " + where if where else ""
    return "attempt %d failed%s: %s; retried (%d of %d)" % (number, place, _one_line(why), used, of)


def _one_line(why: str) -> str:
    """Return the first line of an error, as far as a message about an attempt shows it."""
    return shortened((why.strip().split("\n") or [""])[0], _SHOWN)


def unless_restarted(work: "AttemptRun", verdict: Verdict, alive: bool) -> "tuple[Verdict, bool]":
    """Return a verdict, and whether it is the worker's own report; another one if the scheduler starts the job again.

    Signals and statuses do not say that: a script that has its job requeued may exit with 0 before SIGTERM arrives.
    """
    scheduler = work.job.scheduler
    log = work.job.path(layout.SCHEDULER_LOG)
    kind = verdict.kind
    # The value of an item is kept by its line, and a map may have thousands in a minute.
    is_kept = kind == layout.RETURNED and work.job.element is not None and work.job.spec.get("has_value", True)
    if kind in (None, layout.CANCELLED, PREEMPTED) or is_kept or work.job.cancelled():
        return verdict, alive
    until = time.monotonic() + (KILL_WAIT_S if work.watch.is_ending() else 0.0)
    found = scheduler.ending(log)
    while found is not None and found.kind is None and time.monotonic() < until:
        time.sleep(1.0)
        found = scheduler.ending(log)
    if found is not None and found.kind is None:
        work.notes.append(found.message)
    is_asked = found is not None and found.kind == PREEMPTED
    status = verdict.code or 0
    if kind == layout.COMMAND and not is_asked and scheduler.starts_again_after(status):
        message = "this site starts jobs again that exit with status %d" % status
        found = Verdict(PREEMPTED, message, stage="scheduler", requeued={"cause": "status"}, exit_status=status)
    # The scheduler may have given up the node of a process that has returned all the same.
    is_late = kind == layout.RETURNED and found is not None and found.requeued == {"cause": NODE_LOSS}
    if found is None or found.kind != PREEMPTED or is_late:
        return verdict, alive
    work.end_tree()
    return found, False


def requeues_allowed(job: "JobFolder", cause: str) -> int:
    """Return how often it may be requeued for this cause; 0 if `requeue=` does not name it."""
    return int((job.spec.get("requeue") or {}).get(cause, 0))


def cause_of(job: "JobFolder", verdict: Verdict) -> str:
    """Return the cause, in the words of `requeue=`, for which this verdict is not to be the last; "" if there is none.

    A cause that `requeue=` does not name is ignored here: a scheduler may restart the job all the same.
    """
    cause = ""
    if verdict.kind == TIME:
        cause = TIMEOUT
    elif verdict.kind == PREEMPTED or (job.scheduler.has_nodes and verdict.asked):
        cause = (verdict.requeued or {}).get("cause", PREEMPTION)
    # A machine without a scheduler asks all processes to end, as it does before it restarts.
    elif not job.scheduler.has_nodes and (verdict.asked or verdict.exit_status == EXIT_LEFT_TO_AFTER):
        cause = NODE_LOSS
    return cause if requeues_allowed(job, cause) else ""


def requeues_used(attempt: Attempt, cause: str) -> int:
    """Return how often the job was requeued for this cause before this attempt."""
    before = (outcome.get("requeued") or {} for outcome in attempt.outcomes_before())
    return sum(requeue.get("cause") == cause for requeue in before)


def exhausted(verdict: Verdict, of: int) -> Verdict:
    """The last verdict of a job that was requeued as often as it may be."""
    message = "%s, and requeue= allows no more than %d for this cause" % (verdict.message, of)
    kind = TAKEN_BACK if verdict.kind == PREEMPTED else verdict.kind
    return verdict.replace(kind=kind or LOST, message=message, exit_status=None)


def requeued(number: int, verdict: Verdict, cause: str, count: int, of: int) -> Verdict:
    """The outcome of an attempt after which the job was requeued; what ended it stays in the message."""
    message = _requeued_in_words(number, cause, verdict.message, count, of)
    evidence = verdict.evidence or []
    requeue = {"cause": cause, "count": count, "of": of}
    preempted = verdict.replace(kind=PREEMPTED, message=message, value=None, exit_status=None)
    return preempted.replace(evidence=evidence, requeued=requeue)


def _requeued_in_words(number: int, cause: str, why: str, count: int, of: int) -> str:
    return "attempt %d %s: %s; requeued (%d of %d)" % (number, _DONE[cause], _one_line(why), count, of)


def start_again(job: "JobFolder", verdict: Verdict, message: str) -> "tuple[int, str]":
    """Have the job started again once this process has ended.

    Returns:
        With what this process must exit, and why the job will not be started again; "" if it will.
    """
    # The scheduler has requeued a job by itself that it preempted.
    if verdict.kind == PREEMPTED:
        return EXIT_PUBLISHED, ""
    if job.scheduler.has_nodes:
        return EXIT_PUBLISHED, job.scheduler.requeue()
    try:
        waits = job.held.queue_again(message)
    except OSError as error:
        return EXIT_QUEUED, "its ticket could not be written: %s" % error
    return EXIT_QUEUED, "" if waits else "this machine has no queue: it runs no Linux"


def conclude_loss(job: "JobFolder", attempt: Attempt) -> "Optional[Verdict]":
    """Return the verdict on the attempt before this one, if it was lost with its node; None if it was not.

    Publishes a final outcome there if the job has been requeued as often as it may be.
    """
    before = Attempt(job, attempt.number - 1)
    of = requeues_allowed(job, NODE_LOSS)
    if not of or before.number not in job.attempts() or before.outcome() is not None:
        return None
    count, why = 1 + requeues_used(before, NODE_LOSS), "its node was lost, or restarted"
    if count > of:
        message = "the node of attempt %d was lost, or restarted" % before.number
        lost = Verdict(NODE, message, stage="scheduler", by="supervisor", hint="call the function again")
        before.publish(exhausted(lost, of))
        return None
    message = _requeued_in_words(before.number, NODE_LOSS, why, count, of)
    return Verdict(SUPERSEDED, message, by="supervisor", requeued={"cause": NODE_LOSS, "count": count, "of": of})
