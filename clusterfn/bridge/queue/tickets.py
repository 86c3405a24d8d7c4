"""Files of the queue of one user on one machine: a ticket for each job that waits, and the journal of leases.

A ticket is written by the supervisor that found no room, and removed once the job is claimed; a process that dies in
between leaves either a ticket or a claim. The journal has one JSON line for each event, appended whole;
docs/reference/job-directory.md describes them. It is for people and for tests that judge the queue from outside, and a
full disk does not end a job.
"""

import json
import os
import re
import stat
import time
from collections import namedtuple

from ..layout import CANCEL, CLAIM, DAMAGED_TICKETS, ELEMENTS, FORMAT, JOBS, QUEUE, element_log
from ..supervisor import publish
from ..supervisor.job import DAMAGED
from ..supervisor.process_tree import boot_id
from . import machine
from .capacity import Demand, UserLimits, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


# order: what sorts them; ms: the same for other users; needs: files without which its environment is not there yet
Ticket = namedtuple(
    "Ticket",
    ("order", "ms", "job", "name", "folder", "home", "element", "submitted", "asked", "limits", "kind", "written",
     "timeout_s", "reason", "lease", "needs"),
)  # fmt: skip

_NONE, _NUMBER = type(None), (int, float)
# What a supervisor of this version writes. The spooler counts with these values: one of another type would end it, and
# every spooler after it.
_FIELDS: "dict[str, Any]" = {
    "boot": str, "submitted": int, "t": _NUMBER, "name": str, "folder": str, "home": str, "element": (int, _NONE),
    "reason": str, "lease": str, "bridge": str, "queue_timeout_s": (int, float, _NONE), "asked": dict, "limits": dict,
    "resources": dict, "env": dict,
}  # fmt: skip
_MOST = 1 << 40  # of anything that is counted: larger numbers do not fit into the name of a job
_JOB = re.compile(r"([0-9a-f]{16})(?:\.([0-9]+))?\Z")


class Queue:
    """The tickets below one root on this machine."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.folder = os.path.join(machine.folder(root), QUEUE)
        self._boot = boot_id()
        self._known: "dict[str, tuple[tuple[int, int], Ticket]]" = {}
        self._damaged: "dict[str, str]" = {}

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
        try:  # an element that gave way has another ticket than before
            found = os.stat(os.path.join(self.folder, job))
            which = found.st_mtime_ns, found.st_ino  # type: Optional[tuple[int, int]]
        except OSError:  # unknown
            which = None
        known = self._known.get(job)
        if known is not None and which in (known[0], None):
            return known[1]
        told = self.told(job)
        if told is None:
            return None
        ticket = self._ticket(told)
        if which is not None:
            self._known[job] = which, ticket
        return ticket

    def told(self, job: str) -> "Optional[dict[str, Any]]":
        """All that is written on it; None if there is none, or it cannot be read now, or it is no ticket of ours."""
        self._damaged.pop(job, None)
        try:
            told = json.loads(_read(os.path.join(self.folder, job)))
            if isinstance(told, dict) and told.get("format") not in (FORMAT, None):
                return None  # the spooler of that version reads it
            return _checked(dict(told), job)
        except OSError:
            return None
        except DAMAGED as error:
            self._damaged[job] = "%s: %s" % (type(error).__name__, error)
            return None

    def damaged(self) -> "dict[str, str]":
        """The tickets that were found damaged at the last look, and what is wrong with each."""
        return {job: why for job, why in self._damaged.items() if _JOB.match(job)}

    def waits(self, job: str) -> bool:
        """Whether it has a ticket, be it a damaged one, which the spooler is about to give an outcome."""
        return self.of(job) is not None or job in self.damaged()

    def folder_of(self, job: str) -> str:
        """The folder of the job, or of the element, that a ticket's name means."""
        whole, _, element = job.partition(".")
        folder = os.path.join(self.root, JOBS, whole)
        return os.path.join(folder, ELEMENTS, element) if element else folder

    def set_aside(self, job: str) -> None:
        """Keep a damaged ticket for people, where no spooler reads it."""
        aside = os.path.join(machine.folder(self.root), DAMAGED_TICKETS)
        os.makedirs(aside, mode=0o700, exist_ok=True)
        try:
            os.rename(os.path.join(self.folder, job), os.path.join(aside, job))
        except FileNotFoundError:
            return

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
        record_event(self.root, WITHDRAWN, job)

    def as_ticket(self, told: "dict[str, Any]") -> Ticket:
        """What would be read if this were written now."""
        return self._ticket(dict(told, boot=self._boot))

    def _ticket(self, told: "dict[str, Any]") -> Ticket:
        """What was written before the machine was last started is older than anything since."""
        now = told["boot"] == self._boot
        order = (1, told["submitted"]) if now else (0, told["t"])
        return Ticket(
            order, told["submitted"] // 10**6 if now else 0, told["job"], told["name"], told["folder"], told["home"],
            told["element"], told["submitted"], Demand(**told["asked"]), UserLimits(**told["limits"]),
            kind_of(told["resources"]), told["t"], told["queue_timeout_s"], told["reason"], told["lease"],
            tuple(told.get("needs", ())),
        )  # fmt: skip


def _read(path: str) -> str:
    """A file's text. Anything else that was put there, such as a FIFO, must not keep the reader waiting."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError("it is not a file")
    with open(fd, encoding="utf-8") as file:
        return file.read()


def _checked(told: "dict[str, Any]", job: str) -> "dict[str, Any]":
    """The same; raises one of `DAMAGED` if no supervisor has written this."""
    if told["job"] != job:
        raise ValueError("it is the ticket of %r" % told["job"])
    for name, kinds in _FIELDS.items():
        if not isinstance(told[name], kinds):
            raise TypeError("%s is %r" % (name, told[name]))
    for name, value in list(told["asked"].items()) + [("submitted", told["submitted"])]:
        if not isinstance(value, int) or not 0 <= value < _MOST * (10**9 if name == "submitted" else 1):
            raise ValueError("%s is %r" % (name, value))
    for name, value in told["limits"].items():
        if not isinstance(value, (int, float, _NONE)):
            raise TypeError("limits: %s is %r" % (name, value))
    Demand(**told["asked"]), UserLimits(**told["limits"]), kind_of(told["resources"])
    for text in (told["folder"], told["home"], *told.get("needs", ()), *told["env"], *told["env"].values()):
        if b"\0" in os.fsencode(text):
            raise ValueError("%r holds a zero byte" % text)
    if any("=" in name or not name for name in told["env"]):
        raise ValueError("env holds what is not the name of a variable")
    return told


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
    """For how long it waits for its turn, by a clock that is never set; by the wall clock if the machine was restarted
    since. The time in which its environment was made does not count.
    """
    waited = float((machine.now_ns() - ticket.submitted) / 1e9 if ticket.ms else time.time() - ticket.written)
    made = max(map(_made, ticket.needs), default=0.0)
    return min(waited, time.time() - made) if made > ticket.written else waited


def has_environment(ticket: Ticket) -> bool:
    """Whether its environment is there."""
    return all(map(os.path.exists, ticket.needs))


def _made(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:  # it is not there yet
        return time.time()


def is_cancelled(ticket: Ticket) -> bool:
    """Whether it was asked to end."""
    return os.path.exists(os.path.join(ticket.home, CANCEL))


def log_of(ticket: Ticket) -> str:
    """Its scheduler.log."""
    name = "scheduler.log" if ticket.element is None else element_log(ticket.element)
    return os.path.join(ticket.home, name)


JOURNAL_FILE = "holds.jsonl"
_LARGEST = 16 << 20

TICKET, WITHDRAWN, TAKEN, EXCHANGED, RELEASED = "ticket", "withdrawn", "taken", "exchanged", "released"


def record_event(root: str, event: str, job: str, **facts: "Any") -> None:
    """Append a line; times are wall seconds."""
    line = dict(facts, event=event, job=job, t=round(time.time(), 6))
    if isinstance(line.get("asked"), Demand):
        line["asked"] = dict(line["asked"]._asdict())
    folder = machine.folder(root)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _append(os.path.join(folder, JOURNAL_FILE), (json.dumps(line) + "\n").encode())
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
