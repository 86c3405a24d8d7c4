"""Files of the queue of one user on one machine: a ticket for each job that waits, and the journal of leases.

The supervisor that found no room writes a ticket, and removes it once the job is claimed. A process that dies in
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

from ..layout import CANCEL, CLAIM, DAMAGED_TICKETS, ELEMENTS, FORMAT, JOBS, QUEUE
from ..supervisor import publish
from ..supervisor.job import DAMAGED, dependencies_of
from ..supervisor.process_tree import boot_id
from . import machine
from .machine import Demand, UserLimits, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


# order: what sorts them, by priority= first; ms: when it was submitted, for other users; needs: files without which its
# environment is not ready; after: the jobs whose values it takes
Ticket = namedtuple(
    "Ticket",
    ("order", "ms", "job", "name", "folder", "home", "element", "submitted", "asked", "limits", "kind", "written",
     "timeout_s", "reason", "lease", "needs", "after"),
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
        """List the ids of the waiting jobs."""
        try:
            return [name for name in os.listdir(self.folder) if not name.startswith(".")]
        except FileNotFoundError:
            return []

    def read(self) -> "list[Ticket]":
        """Read all tickets in the order in which they start: by priority, then the oldest first."""
        names = self.names()
        for gone in set(self._known) - set(names):
            del self._known[gone]
        return sorted(ticket for ticket in map(self.of, names) if ticket is not None)

    def of(self, job: str) -> "Optional[Ticket]":
        """Return a job's ticket, or None."""
        try:  # an element that gave way has another ticket than before
            found = os.stat(os.path.join(self.folder, job))
            which = found.st_mtime_ns, found.st_ino  # type: Optional[tuple[int, int]]
        except OSError:  # unknown
            which = None
        known = self._known.get(job)
        if known is not None and which in (known[0], None):
            return known[1]
        fields = self.fields(job)
        if fields is None:
            return None
        ticket = self._ticket(fields)
        if which is not None:
            self._known[job] = which, ticket
        return ticket

    def fields(self, job: str) -> "Optional[dict[str, Any]]":
        """Return the content of a ticket; None if it is missing, cannot be read now, or is no ticket of ours."""
        self._damaged.pop(job, None)
        try:
            fields = json.loads(_read(os.path.join(self.folder, job)))
            if isinstance(fields, dict) and fields.get("format") not in (FORMAT, None):
                return None  # the spooler of that version reads it
            return _checked(dict(fields), job)
        except OSError:
            return None
        except DAMAGED as error:
            self._damaged[job] = "%s: %s" % (type(error).__name__, error)
            return None

    def damaged(self) -> "dict[str, str]":
        """Return the tickets that were damaged when last read, and what is wrong with each."""
        return {job: why for job, why in self._damaged.items() if _JOB.match(job)}

    def waits(self, job: str) -> bool:
        """Return whether a job has a ticket; the spooler gives the job of a damaged one an outcome."""
        return self.of(job) is not None or job in self.damaged()

    def folder_of(self, job: str) -> str:
        """Return the folder of the job, or of the element, that a ticket is named for."""
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

    def write(self, fields: "dict[str, Any]") -> None:
        """Write the ticket of a job: it waits from now on."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        publish.replace(os.path.join(self.folder, fields["job"]), json.dumps(dict(fields, boot=self._boot)).encode())

    def remove(self, job: str) -> None:
        """Remove a ticket: its job waits no longer."""
        self._known.pop(job, None)
        try:
            os.unlink(os.path.join(self.folder, job))
        except FileNotFoundError:
            return

    def withdraw(self, job: str) -> None:
        """Remove the ticket of a job that will never start."""
        self.remove(job)
        record_event(self.root, WITHDRAWN, job)

    def as_ticket(self, fields: "dict[str, Any]") -> Ticket:
        """Return what would be read if this were written now."""
        return self._ticket(dict(fields, boot=self._boot))

    def _ticket(self, fields: "dict[str, Any]") -> Ticket:
        now = fields["boot"] == self._boot
        # What was written before the machine was last started is older than anything since.
        order = (-fields.get("priority", 0), *((1, fields["submitted"]) if now else (0, fields["t"])))
        return Ticket(
            order, fields["submitted"] // 10**6 if now else 0, fields["job"], fields["name"], fields["folder"],
            fields["home"], fields["element"], fields["submitted"], Demand(**fields["asked"]),
            UserLimits(**fields["limits"]), kind_of(fields["resources"]), fields["t"], fields["queue_timeout_s"],
            fields["reason"], fields["lease"], tuple(fields.get("needs", ())),
            tuple(dependencies_of(fields)),
        )  # fmt: skip


def _read(path: str) -> str:
    # Anything else that was put there, such as a FIFO, must not block the reader.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError("it is not a file")
    with open(fd, encoding="utf-8") as file:
        return file.read()


def _checked(fields: "dict[str, Any]", job: str) -> "dict[str, Any]":
    """Return a ticket's fields; raise one of `DAMAGED` if no supervisor has written them."""
    if fields["job"] != job:
        raise ValueError("it is the ticket of %r" % fields["job"])
    for name, kinds in _FIELDS.items():
        if not isinstance(fields[name], kinds):
            raise TypeError("%s is %r" % (name, fields[name]))
    for name, value in list(fields["asked"].items()) + [("submitted", fields["submitted"])]:
        if not isinstance(value, int) or not 0 <= value < _MOST * (10**9 if name == "submitted" else 1):
            raise ValueError("%s is %r" % (name, value))
    if not isinstance(fields.get("priority", 0), int):
        raise TypeError("priority is %r" % fields["priority"])
    for name, value in fields["limits"].items():
        if not isinstance(value, (int, float, _NONE)):
            raise TypeError("limits: %s is %r" % (name, value))
    Demand(**fields["asked"]), UserLimits(**fields["limits"]), kind_of(fields["resources"])
    for job_id, told in (fields.get("after") or {}).items():
        if not (_JOB.match(job_id) and isinstance(told["name"], str) and isinstance(told["items"], (list, _NONE))):
            raise ValueError("after: %s is %r" % (job_id, told))
    for text in (fields["folder"], fields["home"], *fields.get("needs", ()), *fields["env"], *fields["env"].values()):
        if b"\0" in os.fsencode(text):
            raise ValueError("%r holds a zero byte" % text)
    if any("=" in name or not name for name in fields["env"]):
        raise ValueError("env holds what is not the name of a variable")
    return fields


def is_claimed(ticket: Ticket) -> bool:
    """Return whether a job has begun, or never will because its folder is gone."""
    if os.path.exists(os.path.join(ticket.folder, CLAIM)):
        return True
    try:
        os.stat(ticket.home)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # the file server does not say
        return False
    return False


def waited_s(ticket: Ticket) -> float:
    """Return how long a job has waited for its turn, not counting the time in which its environment was made.

    The clock is one that is never set; the wall clock counts if the machine was restarted since.
    """
    waited = float((machine.now_ns() - ticket.submitted) / 1e9 if ticket.ms else time.time() - ticket.written)
    made = max(map(_made, ticket.needs), default=0.0)
    return min(waited, time.time() - made) if made > ticket.written else waited


def has_environment(ticket: Ticket) -> bool:
    """Return whether the job's environment is there."""
    return all(map(os.path.exists, ticket.needs))


def _made(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:  # it does not exist yet
        return time.time()


def is_cancelled(ticket: Ticket) -> bool:
    """Return whether the job was asked to end."""
    return os.path.exists(os.path.join(ticket.home, CANCEL))


JOURNAL_FILE = "holds.jsonl"
_LARGEST = 16 << 20

TICKET, WITHDRAWN, TAKEN, EXCHANGED, RELEASED = "ticket", "withdrawn", "taken", "exchanged", "released"


def record_event(root: str, event: str, job: str, **facts: "Any") -> None:
    """Append a line to the journal; times are wall seconds."""
    line = dict(facts, event=event, job=job, t=round(time.time(), 6))
    if isinstance(line.get("asked"), Demand):
        line["asked"] = dict(line["asked"]._asdict())
    folder = machine.folder(root)
    path = os.path.join(folder, JOURNAL_FILE)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, (json.dumps(line) + "\n").encode())
            large = os.fstat(fd).st_size > _LARGEST
        finally:
            os.close(fd)
        if large:
            os.rename(path, path + ".1")  # replaces the one before
    except OSError:
        return
