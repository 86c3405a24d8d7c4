"""Decide what `requeue=` requeues, how often, and with which message; have the scheduler or the queue start it again.

An attempt after which its job was requeued says so in its outcome (`requeued`), so the count outlives every process.
`time` applies to each attempt then, and the checkpoint folder is the same for all.
"""

from ..layout import EXIT_PUBLISHED, EXIT_QUEUED, LOST, NODE, PREEMPTED, SUPERSEDED, TIME
from .attempt import Attempt
from .retries import one_line
from .verdict import EXIT_LEFT_TO_AFTER, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .job import JobFolder

TIMEOUT, PREEMPTION, NODE_LOSS = "timeout", "preempted", "node"
_DONE = {TIMEOUT: "ran out of time", PREEMPTION: "was preempted", NODE_LOSS: "was interrupted"}


class Refused(Exception):
    """The job was not requeued, and why."""


def allowed(job: "JobFolder", cause: str) -> int:
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
        cause = PREEMPTION
    # A machine without a scheduler asks all processes to end, as it does before it restarts.
    elif not job.scheduler.has_nodes and (verdict.asked or verdict.exit_status == EXIT_LEFT_TO_AFTER):
        cause = NODE_LOSS
    return cause if allowed(job, cause) else ""


def used(attempt: Attempt, cause: str) -> int:
    """Return how often the job was requeued for this cause before this attempt."""
    before = (outcome.get("requeued") or {} for outcome in attempt.outcomes_before())
    return sum(each.get("cause") == cause for each in before)


def exhausted(verdict: Verdict, of: int) -> Verdict:
    """The last verdict of a job that was requeued as often as it may be."""
    message = "%s, and requeue= allows no more than %d for this cause" % (verdict.message, of)
    kind = LOST if verdict.kind in (None, PREEMPTED) else verdict.kind
    return verdict.replace(kind=kind, message=message, exit_status=None)


def superseding(number: int, verdict: Verdict, cause: str, count: int, of: int) -> Verdict:
    """The outcome of an attempt after which the job was requeued; what ended it stays in the message."""
    return verdict.replace(
        kind=PREEMPTED, message=in_words(number, cause, verdict.message, count, of), value=None,
        evidence=verdict.evidence or [], requeued={"cause": cause, "count": count, "of": of}, exit_status=None,
    )  # fmt: skip


def in_words(number: int, cause: str, why: str, count: int, of: int) -> str:
    """What people read about an attempt after which the job was requeued."""
    return "attempt %d %s: %s; requeued (%d of %d)" % (number, _DONE[cause], one_line(why), count, of)


def start_again(job: "JobFolder", verdict: Verdict, message: str) -> int:
    """Have the job started again once this process has ended; return with what that must exit.

    Raises:
        Refused: It will not be.
    """
    # The scheduler has requeued the job by itself.
    if verdict.kind == PREEMPTED:
        return EXIT_PUBLISHED
    if job.scheduler.has_nodes:
        refusal = job.scheduler.requeue()
        if refusal:
            raise Refused(refusal)
        return EXIT_PUBLISHED
    try:
        waits = job.held.queue_again(message)
    except OSError as error:
        raise Refused("its ticket could not be written: %s" % error) from error
    if not waits:
        raise Refused("this machine has no queue: it runs no Linux")
    return EXIT_QUEUED


def conclude_loss(job: "JobFolder", attempt: Attempt) -> "Optional[Verdict]":
    """Return the verdict on the attempt before this one, if it was lost with its node; None if it was not.

    Publishes a final outcome there if the job has been requeued as often as it may be.
    """
    before = Attempt(job, attempt.number - 1)
    of = allowed(job, NODE_LOSS)
    if not of or before.number not in job.attempts() or before.outcome() is not None:
        return None
    count, why = 1 + used(before, NODE_LOSS), "its node was lost, or restarted"
    if count > of:
        lost = Verdict(
            NODE, "the node of attempt %d was lost, or restarted" % before.number, stage="scheduler",
            by="supervisor", hint="call the function again",
        )  # fmt: skip
        before.publish(exhausted(lost, of))
        return None
    message = in_words(before.number, NODE_LOSS, why, count, of)
    return Verdict(SUPERSEDED, message, by="supervisor", requeued={"cause": NODE_LOSS, "count": count, "of": of})
