"""Decide what `retries=` retries: which causes are transient, how often, with which message, avoiding which GPUs.

An attempt that was followed by another says so in its outcome (`retried`), so the count outlives every supervisor.
Reads outcomes, writes nothing.
"""

from ..layout import LOST, NODE, PREEMPTED, RAISED, SUPERSEDED
from .text import shortened
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .job import JobFolder

# These kinds say that the process is lost which ran an item of a group.
LOSSES = (LOST, NODE, PREEMPTED)
_SHOWN = 300
# The shell reports SIGTERM by this status: the supervisor was asked to end.
TERMINATED = "143"


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


def is_lost(verdict: Verdict, status: str) -> bool:
    """Whether the supervisor died by itself, and not because the job was to end.

    Args:
        verdict: What `after` would publish.
        status: The supervisor's exit status, as the shell says it.
    """
    return verdict.kind == LOST and verdict.stage is None and status != TERMINATED


def superseding(verdict: Verdict, message: str, by: int, uuids: "list[str]") -> Verdict:
    """The outcome of an attempt that failed and is followed by attempt `by`; its own error stays in it."""
    retried = {"kind": verdict.kind, "cause": (verdict.transient or {}).get("name"), "cards": suspects(verdict, uuids)}
    evidence = verdict.evidence or []
    return verdict.replace(
        kind=SUPERSEDED, message=message, superseded_by=by, value=None, evidence=evidence, retried=retried
    )  # fmt: skip


def suspects(verdict: Verdict, uuids: "list[str]") -> "list[str]":
    """The GPUs that may be to blame: none where the same call may succeed in the same place."""
    return uuids if (verdict.transient or {}).get("retry") == "new process" else []


def lost(number: int, verdict: Verdict, used: int, of: int) -> Verdict:
    """Return the verdict on an attempt whose supervisor died, and that is followed by another."""
    message = in_words(number, "", verdict.message, used, of)
    return Verdict(SUPERSEDED, message, retried={"kind": LOST, "cause": None, "cards": []}, by="after")


def in_words(number: int, where: str, why: str, used: int, of: int) -> str:
    """What people read about an attempt that is followed by another.

    Args:
        number: Of the attempt.
        where: Its GPUs, or the node; "" if that has no part in it.
        why: Its error.
        used: How often it has been retried, this time included.
        of: How often it may be.
    """
    return "attempt %d failed%s: %s; retried (%d of %d)" % (
        number, " on " + where if where else "", one_line(why), used, of,
    )  # fmt: skip


def one_line(why: str) -> str:
    """Return the first line of an error, as far as a message about an attempt shows it."""
    return shortened((why.strip().split("\n") or [""])[0], _SHOWN)
