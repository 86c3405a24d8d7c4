"""The journal of one user on one machine: who was let in when and with which cards, who waits, who gave back.

One JSON line each, appended whole; docs/reference/job-directory.md describes them. It is for people and for tests that
judge the queue from outside: nothing here reads it, and a full disk does not end a job.
"""

import json
import os
import time

from . import machine
from .demand import Demand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "holds.jsonl"
_LARGEST = 16 << 20

TICKET, WITHDRAWN, TAKEN, EXCHANGED, RELEASED = "ticket", "withdrawn", "taken", "exchanged", "released"


def write(root: str, event: str, job: str, **facts: "Any") -> None:
    """Append a line; times are wall seconds."""
    line = dict(facts, event=event, job=job, t=round(time.time(), 6))
    if isinstance(line.get("asked"), Demand):
        line["asked"] = dict(line["asked"]._asdict())
    folder = machine.folder(root)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _append(os.path.join(folder, FILE), (json.dumps(line) + "\n").encode())
    except OSError:
        return


def _append(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, data)
        large = os.fstat(fd).st_size > _LARGEST
    finally:
        os.close(fd)
    if large:
        os.rename(path, path + ".1")  # the one before it goes
