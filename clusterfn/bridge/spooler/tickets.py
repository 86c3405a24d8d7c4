"""Tickets: jobs that wait, each a file in the queue of one user on one machine.

Written by the supervisor that found no room, removed once the job is claimed; whoever dies in between leaves either a
ticket or a claim. Reads and writes these files alone. Called by `admission`, `spool`, `status` and `after`.
"""

import json
import os
import time
from collections import namedtuple

from ...layout import CANCEL, CLAIM, QUEUE, element_log
from ..supervisor import publish
from ..supervisor.job import DAMAGED
from . import holds, machine
from .demand import Demand, Limits, kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

# order: what sorts them; ms: the same for other users; deadline: wall seconds or None
Ticket = namedtuple(
    "Ticket",
    ("order", "ms", "job", "name", "folder", "home", "element", "submitted", "asked", "limits", "kind", "written",
     "timeout_s", "reason", "lease"),
)  # fmt: skip


class Queue:
    """The tickets below one root on this machine."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.folder = os.path.join(machine.folder(root), QUEUE)
        self._boot = machine.boot_id()
        self._known: "dict[str, tuple[tuple[int, int], Ticket]]" = {}

    def names(self) -> "list[str]":
        """The ids of the jobs that wait."""
        try:
            return [name for name in os.listdir(self.folder) if not name.startswith(".")]
        except FileNotFoundError:
            return []

    def read(self) -> "list[Ticket]":
        """All of them, the oldest first."""
        names = self.names()
        for gone in set(self._known) - set(names):
            del self._known[gone]
        return sorted(ticket for ticket in map(self.of, names) if ticket is not None)

    def of(self, job: str) -> "Optional[Ticket]":
        """A job's ticket, or None."""
        which = self._which(job)
        known = self._known.get(job)
        if known is not None and which in (known[0], None):
            return known[1]
        told = self.told(job)
        try:
            ticket = self._ticket(told or {})
        except DAMAGED:  # none, or of another version, whose spooler may read it
            return None
        if which is not None:
            self._known[job] = which, ticket
        return ticket

    def _which(self, job: str) -> "Optional[tuple[int, int]]":
        """Which file it is: an element that gave way has another ticket than before. None if nobody can say."""
        try:
            found = os.stat(os.path.join(self.folder, job))
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def told(self, job: str) -> "Optional[dict[str, Any]]":
        """All that is written on it."""
        try:
            with open(os.path.join(self.folder, job), encoding="utf-8") as file:
                return dict(json.load(file))
        except (OSError, TypeError):  # not there; not to be read now; or not one of ours
            return None
        except ValueError:  # a crash of the machine has torn it
            self.remove(job)
            return None

    def write(self, told: "dict[str, Any]") -> None:
        """A job waits from now on."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        publish.replace(os.path.join(self.folder, told["job"]), json.dumps(dict(told, boot=self._boot)).encode())

    def remove(self, job: str) -> None:
        """It waits no longer."""
        self._known.pop(job, None)
        try:
            os.unlink(os.path.join(self.folder, job))
        except FileNotFoundError:
            return

    def withdraw(self, job: str) -> None:
        """It will never start."""
        self.remove(job)
        holds.write(self.root, holds.WITHDRAWN, job)

    def _ticket(self, told: "dict[str, Any]") -> Ticket:
        """What was written before the machine was last started is older than anything since."""
        now = told["boot"] == self._boot
        order = (1, told["submitted"]) if now else (0, told["t"])
        return Ticket(
            order, told["submitted"] // 10**6 if now else 0, told["job"], told["name"], told["folder"], told["home"],
            told["element"], told["submitted"], Demand(**told["asked"]), Limits(**told["limits"]),
            kind(told["resources"]), told["t"], told["queue_timeout_s"], told["reason"], told["lease"],
        )  # fmt: skip


def is_claimed(ticket: Ticket) -> bool:
    """Whether it has begun, or never will."""
    return os.path.exists(os.path.join(ticket.folder, CLAIM)) or _is_gone(ticket.home)


def _is_gone(folder: str) -> bool:
    """Not so where the file server does not say."""
    try:
        os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def waited_s(ticket: Ticket) -> float:
    """For how long it waits, by a clock that nobody sets; by the wall's if the machine was started anew since."""
    return float((machine.now_ns() - ticket.submitted) / 1e9 if ticket.ms else time.time() - ticket.written)


def is_cancelled(ticket: Ticket) -> bool:
    """Whether somebody asked for its end."""
    return os.path.exists(os.path.join(ticket.home, CANCEL))


def log_of(ticket: Ticket) -> str:
    """Its scheduler.log."""
    name = "scheduler.log" if ticket.element is None else element_log(ticket.element)
    return os.path.join(ticket.home, name)
