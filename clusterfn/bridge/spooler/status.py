"""What is to be told of one user's queue on this machine: a line for each job that waits.

The spooler writes the reasons; whoever asks also sees that a spooler is there. Started through the agent
(`supervise.py queue ROOT`).
"""

import json
import os
import sys

from ..layout import QUEUE_STATUS
from ..supervisor.job import DAMAGED
from . import launch, machine
from .tickets import Queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .tickets import Ticket

_STARTS = "its turn has come"


def queue(root: str, bridge: str) -> int:
    """Print a line for each job that waits, in order: NAME.ID|STATE|REASON."""
    launch.revive(root, bridge)
    for line in lines(root):
        text = "%s.%s|PENDING|%s\n" % (line["name"], line["job"], line["reason"])
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))  # whatever the locale is
    return 0


def lines(root: str) -> "list[dict[str, Any]]":
    """`job`, `name`, `reason`, `submitted`, `asked` of each that waits, the oldest first."""
    waiting = Queue(root)
    reasons = _reasons(root)
    return [_line(ticket, reasons) for ticket in waiting.read()]


def _line(ticket: "Ticket", reasons: "dict[str, str]") -> "dict[str, Any]":
    reason = reasons.get(ticket.job) or ticket.reason or "waiting for its turn"
    asked = dict(ticket.asked._asdict())
    return {"job": ticket.job, "name": ticket.name, "reason": reason, "submitted": ticket.submitted, "asked": asked,
            "since": ticket.written}  # fmt: skip


def _reasons(root: str) -> "dict[str, str]":
    try:
        with open(_path(root), encoding="utf-8") as file:
            return {told["job"]: told["reason"] for told in map(json.loads, file)}
    except DAMAGED:  # no spooler has told yet, or it is not what one has told
        return {}


def reason(root: str, job: str) -> str:
    """Why a job waits; "" if it does not."""
    ticket = Queue(root).of(job)
    return "" if ticket is None else str(_line(ticket, _reasons(root))["reason"])


def write(root: str, tickets: "list[Ticket]", reasons: "dict[str, str]") -> None:
    """Tell why each of them waits."""
    told = [_line(ticket, dict({ticket.job: _STARTS}, **reasons)) for ticket in tickets]
    path = _path(root)
    try:
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in told)
        os.rename(path + ".new", path)
    except OSError:  # full: it is news, not the queue
        return


def _path(root: str) -> str:
    return os.path.join(machine.folder(root), QUEUE_STATUS)
