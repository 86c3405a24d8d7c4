"""How a job ended, as outcome.json has it, and the lines that the supervisor prints about it.

Printing may fail, as on a full disk, and that does not matter."""

import json
import os
import time

from ..layout import FORMAT, KINDS, NOT_FINAL, SUPERSEDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_FACTS = (
    "stage", "message", "code", "signal", "evidence", "hint", "exception", "value", "usage", "notes", "node", "by",
    "superseded_by", "left", "retried", "requeued", "earlier", "checkpoint", "cause",
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
    """Return outcome.json with every field."""
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


def say(message: str) -> None:
    """Print a line for people."""
    _write(2, "clusterfn: %s %s" % (time.strftime("%H:%M:%S"), message))


def print_state(attempt: "Optional[int]", kind: "Optional[str]", won: bool) -> None:
    """Print what is published now, for the client that asked and for scheduler.log."""
    _write(1, json.dumps({"attempt": attempt, "kind": kind, "won": won}))


def print_disk_full(error: OSError, folder: str) -> None:
    """That the disk takes nothing more, for people and, in the agent's words, for the client that asked."""
    say("nothing can be published: %s" % error)
    path, why = str(error.filename or folder), os.strerror(error.errno or 0)
    told = {"kind": "full", "message": why, "errno": error.errno, "path": path, "free": None}
    try:
        disk = os.statvfs(folder)
        told["free"] = disk.f_bavail * disk.f_frsize
    except OSError:  # it is gone, or cannot be looked at
        pass
    _write(1, json.dumps({"attempt": None, "kind": None, "won": False, "full": told}))


def _write(fd: int, line: str) -> None:
    try:
        os.write(fd, (line + "\n").encode("utf-8", "backslashreplace"))
    except OSError:  # full, or closed
        return
