"""How a job ended, as outcome.json has it, and the lines that the supervisor prints about it.

Printing may fail, as on a full disk, and that does not matter."""

import contextlib
import json
import os
import time

from ..layout import EXIT_PUBLISHED, EXIT_RETURNED, FORMAT, KINDS, LOST, NOT_FINAL, OUTCOME, RETURNED
from .text import portable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

# These fields are not in outcome.json by themselves.
_OWN = ("kind", "exit_status", "asked", "transient", "kept", "exception_at")
# What the supervisor exits with if no kind says it: the scheduler's reason is not known yet, and `after` asks for it.
EXIT_LEFT_TO_AFTER = 143


class Verdict:
    """How an attempt ends. It never changes: `replace` returns another.

    A field that outcome.json has is None as long as nothing is known of it.

    Attributes:
        kind: One of `layout.KINDS`; None: nothing may be published here.
        evidence: Lines; None if no process has looked for them.
        exit_status: What the supervisor exits with, if the kind does not say it.
        asked: Whether it was asked to end by SIGTERM, and no other reason will be named.
        transient: What the table of CUDA's errors says of a failure that passes.
        kept: The path of what another node raised; "" if the value is in its place.
        exception_at: Path, offset and size of the exception of the job that failed before this one.
    """

    kind: "Optional[str]" = None
    message: str = ""
    stage: "Optional[str]" = None
    code: "Optional[int]" = None
    signal: "Optional[str]" = None
    evidence: "Optional[list[str]]" = None
    hint: "Optional[str]" = None
    exception: "Optional[dict[str, Any]]" = None
    value: "Optional[dict[str, Any]]" = None
    usage: "Optional[dict[str, Any]]" = None
    notes: "Optional[list[str]]" = None
    node: "Optional[str]" = None
    by: "Optional[str]" = None
    superseded_by: "Optional[int]" = None
    left: "Optional[list[Any]]" = None
    retried: "Optional[dict[str, Any]]" = None
    requeued: "Optional[dict[str, Any]]" = None
    earlier: "Optional[list[str]]" = None
    checkpoint: "Optional[bool]" = None
    cause: "Optional[dict[str, Any]]" = None
    exit_status: "Optional[int]" = None
    asked: bool = False
    transient: "Optional[dict[str, Any]]" = None
    kept: str = ""
    exception_at: "Optional[tuple[str, int, int]]" = None

    def __init__(self, kind: "Optional[str]", message: str = "", **facts: "Any") -> None:
        unknown = sorted(facts.keys() - _NAMES)
        if unknown:
            raise TypeError("a verdict has no field %s" % ", ".join(unknown))
        vars(self).update(facts, kind=kind, message=message)

    def __setattr__(self, name: str, value: "Any") -> None:
        raise AttributeError("a verdict does not change: replace(%s=…) returns another" % name)

    def replace(self, **facts: "Any") -> "Verdict":
        """Return the same verdict with other values of these fields."""
        known: "dict[str, Any]" = dict(vars(self), **facts)
        return Verdict(**known)

    def published(self) -> "dict[str, Any]":
        """Return the fields of outcome.json, but for `kind`, with None for what is not known."""
        return {name: getattr(self, name) for name in _PUBLISHED}


_NAMES = frozenset(Verdict.__annotations__)
_PUBLISHED = tuple(name for name in Verdict.__annotations__ if name not in _OWN)


class AttemptEnded(Exception):
    """Raised where it is found how an attempt ends, and caught where that is published."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


def requested(asked: "dict[str, Any]") -> Verdict:
    """Return the verdict that a client, or the spooler, asks `supervise.py` to publish."""
    facts = {name: asked.get(name) for name in ("evidence", "hint", "stage")}
    return Verdict(asked.get("kind") or LOST, asked.get("message") or "", **facts)


def concluded_by_another() -> Verdict:
    """Return the verdict on an attempt that is fenced: end everything, publish nothing."""
    return Verdict(None, "this attempt was concluded by another", exit_status=EXIT_RETURNED)


def exit_code(verdict: Verdict, won: bool) -> int:
    """Return what the supervisor exits with, by which job.sh knows what comes next; `won`: it is published."""
    if verdict.exit_status is not None:
        return verdict.exit_status
    return EXIT_RETURNED if verdict.kind == RETURNED or not won else EXIT_PUBLISHED


def document(job: str, attempt: int, verdict: Verdict) -> "dict[str, Any]":
    """Return outcome.json with every field."""
    if verdict.kind not in KINDS:
        raise ValueError("no such kind of outcome: %r" % (verdict.kind,))
    known: "dict[str, Any]" = portable(verdict.published())
    for name in ("evidence", "notes", "left", "earlier"):
        known[name] = known[name] or []
    final = verdict.kind not in NOT_FINAL
    return dict(known, format=FORMAT, job=job, attempt=attempt, kind=verdict.kind, final=final)


def log_line(message: str) -> None:
    """Print a line for people."""
    _write(2, "clusterfn: %s %s" % (time.strftime("%H:%M:%S"), message))


def print_state(attempt: "Optional[int]", kind: "Optional[str]", won: bool) -> None:
    """Print what is published now, for the client that asked and for scheduler.log."""
    _write(1, json.dumps({"attempt": attempt, "kind": kind, "won": won}))


def print_disk_full(error: OSError, folder: str) -> None:
    """That the disk takes nothing more, for people and, in the agent's words, for the client that asked."""
    log_line("nothing can be published: %s" % error)
    # This import is late, because disks are seldom full.
    from ..agent.files import disk_left

    path, why = str(error.filename or folder), os.strerror(error.errno or 0)
    full = dict(disk_left(os.path.join(folder, OUTCOME)), kind="full", message=why, errno=error.errno, path=path)
    _write(1, json.dumps({"attempt": None, "kind": None, "won": False, "full": full}))


def _write(fd: int, line: str) -> None:
    # The disk is full or the stream is closed.
    with contextlib.suppress(OSError):
        os.write(fd, (line + "\n").encode("utf-8", "backslashreplace"))
