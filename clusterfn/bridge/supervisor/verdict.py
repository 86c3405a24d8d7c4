"""How a job ended, as outcome.json says it. Pure: no files, no processes; everybody in the supervisor uses it."""

from ..layout import FORMAT, KINDS, NOT_FINAL, SUPERSEDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_FACTS = (
    "stage", "message", "code", "signal", "evidence", "hint", "exception", "value", "usage", "notes", "node", "by",
    "superseded_by", "left", "retried", "earlier", "checkpoint",
)  # fmt: skip


class Verdict(Exception):
    """How an attempt ends; raised where it is found, caught where it is published.

    Attributes:
        kind: One of `layout.KINDS`; None: nothing may be published here (the scheduler's reason is not known yet).
        facts: Fields of outcome.json.
    """

    def __init__(self, kind: "Optional[str]", message: str = "", **facts: "Any") -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.facts: "dict[str, Any]" = dict(facts, message=message)


class Fenced(Verdict):
    """Another has concluded this attempt: end everything, publish nothing."""

    def __init__(self) -> None:
        super().__init__(None, "this attempt was concluded by another")


def document(job: str, attempt: int, kind: str, facts: "dict[str, Any]") -> "dict[str, Any]":
    """outcome.json, every field present."""
    if kind not in KINDS:
        raise ValueError("no such kind of outcome: %r" % kind)
    known = {name: facts.get(name) for name in _FACTS}
    known["evidence"] = known["evidence"] or []
    known["notes"] = known["notes"] or []
    known["left"] = known["left"] or []
    known["earlier"] = known["earlier"] or []
    return dict(known, format=FORMAT, job=job, attempt=attempt, kind=kind, final=kind not in NOT_FINAL)


def superseded(job: str, attempt: int, by: int, facts: "dict[str, Any]") -> "dict[str, Any]":
    """The outcome of an attempt that another one overtook, and what else is known of it."""
    return document(job, attempt, SUPERSEDED, dict({"message": "attempt %d took over" % by}, superseded_by=by, **facts))
