"""Files of the queue of one user on one machine: a ticket for each job that waits, and the journal of leases.

The supervisor that found no room writes a ticket, and removes it once the job is claimed. A process that dies in
between leaves either a ticket or a claim. The journal has one JSON line for each event, appended whole;
docs/reference/job-directory.md describes them. It is for people and for tests that judge the queue from outside, and a
full disk does not end a job.
"""

import contextlib
import json
import os
import stat
import time
from collections import namedtuple

from .. import layout
from ..supervisor import process_tree, publish
from ..supervisor.job import NAME, NUMBER, WHOLE, DamagedFile, dependencies_of, parse_record
from ..supervisor.verdict import log_line
from . import machine
from .machine import Demand, UserLimits, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Optional

    from ..supervisor.job import JobFolder

# order: what sorts tickets, by priority= first. ms: when the job was submitted, for other users. needs: files without
# which the environment is not ready. after: the jobs whose values it takes.
Ticket = namedtuple(
    "Ticket",
    "order ms job name folder home element submitted asked limits kind written timeout_s reason needs after",
)

# Printed to the log of the job's script.
WAITS = "the job waits in the queue"
# What a supervisor of this version writes. The spooler counts with these values: one of another type would end it, and
# every spooler after it.
_TICKET: "dict[str, Any]" = {
    "boot": str, "job": NAME, "submitted": WHOLE, "t": NUMBER, "name": str, "folder": NAME, "home": NAME, "reason": str,
    "element?": WHOLE, "bridge": NAME, "queue_timeout_s?": NUMBER, "priority?": WHOLE, "needs?": [NAME],
    "asked": {"gpus": WHOLE, "cores": WHOLE, "memory_mb": WHOLE}, "limits": {"*?": NUMBER}, "env": {"*": NAME},
    "resources": {"gpu_type?": str, "gpu_memory_bytes?": WHOLE, "gpus_only?": [str]},
    "after?": {"*": {"name": str, "items?": [WHOLE]}},
}  # fmt: skip
_REQUEUES = "the supervisor of a job that is requeued after a restart"
# The state of a ticket -> the folder in which it is, the states that may follow, and who may say so.
# docs/architecture.md shows this table.
TICKET_STATES = {
    "queued": (layout.QUEUE, ("queued", "gone"), "the supervisor that finds no room, yields or requeues"),
    "kept": (layout.INTERRUPTED, ("kept", "queued", "gone"), _REQUEUES),
    "gone": ("", ("queued", "kept"), "the supervisor that has the claim, the spooler, or `conclude`"),
}


class Queue:
    """The tickets below one root on this machine."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.folder = os.path.join(machine.folder(root), layout.QUEUE)
        self._boot = process_tree.boot_id()
        self._cached: "dict[str, tuple[tuple[int, int], Ticket]]" = {}

    def names(self) -> "list[str]":
        """List the ids of the waiting jobs."""
        return list(self.each_name())

    def each_name(self) -> "Iterator[str]":
        """Yield the same, for callers that seldom need all: the queue may hold thousands."""
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        yield entry.name
        except FileNotFoundError:
            return

    def has(self, job: str) -> bool:
        """Whether a job has a ticket, which may be damaged."""
        return os.path.exists(os.path.join(self.folder, job))

    def read(self) -> "list[Ticket]":
        """Read all tickets in the order in which they start: by priority, then the oldest first."""
        names = self.names()
        for gone in set(self._cached) - set(names):
            del self._cached[gone]
        return sorted(ticket for ticket in map(self.of, names) if ticket is not None)

    def of(self, job: str) -> "Optional[Ticket]":
        """Return a job's ticket, or None."""
        try:
            # An element that gave way has another ticket under the same name, which the file's date and inode show.
            status = os.stat(os.path.join(self.folder, job))
            version = status.st_mtime_ns, status.st_ino  # type: Optional[tuple[int, int]]
        except OSError:
            # The file server does not answer now. The ticket that was read before still counts.
            version = None
        cached = self._cached.get(job)
        if cached is not None and version in (cached[0], None):
            return cached[1]
        fields = self.fields(job)
        if fields is None:
            return None
        ticket = self._ticket(fields)
        if version is not None:
            self._cached[job] = version, ticket
        return ticket

    def fields(self, job: str) -> "Optional[dict[str, Any]]":
        """Return the content of a ticket; None if it is missing, or cannot be read now.

        One that no supervisor has written is removed: its job has then lost its place, and its client says so.
        """
        path = os.path.join(self.folder, job)
        try:
            found = parse_record(_read(path), _TICKET, "the ticket")
            if found["job"] != job:
                raise DamagedFile("it is of the job %.40s" % found["job"])
            return found
        except OSError:
            return None
        except DamagedFile as error:
            log_line("the ticket %s is damaged, and is removed: %s" % (path, error))
            with contextlib.suppress(OSError):
                # On a read-only disk it stays where it is.
                os.unlink(path)
            return None

    def folder_of(self, job: str) -> str:
        """Return the folder of the job, or of the element, that a ticket is named for."""
        whole, _, element = job.partition(".")
        folder = os.path.join(self.root, layout.JOBS, whole)
        return os.path.join(folder, layout.ELEMENTS, element) if element else folder

    def write(self, fields: "dict[str, Any]") -> None:
        """Write the ticket of a job: it waits from now on."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        publish.replace(os.path.join(self.folder, fields["job"]), json.dumps(dict(fields, boot=self._boot)).encode())

    def remove(self, job: str) -> None:
        """Remove a ticket: its job waits no longer."""
        self._cached.pop(job, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, job))

    def withdraw(self, job: str) -> None:
        """Remove the ticket of a job that will never start."""
        self.remove(job)
        record_event(self.root, WITHDRAWN, job)

    def as_ticket(self, fields: "dict[str, Any]") -> Ticket:
        """Return what would be read if this were written now."""
        return self._ticket(dict(fields, boot=self._boot))

    def _ticket(self, fields: "dict[str, Any]") -> Ticket:
        now = fields["boot"] == self._boot
        # A ticket from before the last start of the machine is older than all later ones.
        order = (-fields.get("priority", 0), *((1, fields["submitted"]) if now else (0, fields["t"])))
        return Ticket(
            order=order,
            ms=fields["submitted"] // 10**6 if now else 0,
            job=fields["job"],
            name=fields["name"],
            folder=fields["folder"],
            home=fields["home"],
            element=fields.get("element"),
            submitted=fields["submitted"],
            asked=Demand(*(fields["asked"][name] for name in Demand._fields)),
            limits=UserLimits(*(fields["limits"].get(name) for name in UserLimits._fields)),
            kind=kind_of(fields["resources"]),
            written=fields["t"],
            timeout_s=fields.get("queue_timeout_s"),
            reason=fields["reason"],
            needs=tuple(fields.get("needs", ())),
            after=tuple(dependencies_of(fields)),
        )


def kept_aside(root: str) -> Queue:
    """Return the tickets of jobs that run, which a restart of the machine puts back into the queue."""
    kept = Queue(root)
    kept.folder = os.path.join(machine.folder(root), layout.INTERRUPTED)
    return kept


def _read(path: str) -> bytes:
    # Another kind of file, such as a FIFO, must not block the reader.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedFile("it is not a file")
    with open(fd, "rb") as file:
        return file.read()


def is_claimed(ticket: Ticket) -> bool:
    """Return whether a job has begun, or never will because its folder is gone."""
    if os.path.exists(os.path.join(ticket.folder, layout.CLAIM)):
        return True
    try:
        os.stat(ticket.home)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        # The file server does not say, so the job keeps its ticket.
        return False
    return False


def waited_s(ticket: Ticket) -> float:
    """Return how long a job has waited for its turn, not counting the time in which its environment was made.

    The clock is one that is never set; the wall clock counts if the machine was restarted since.
    """
    waited = float((machine.now_ns() - ticket.submitted) / 1e9 if ticket.ms else time.time() - ticket.written)
    built_at = max(map(_built_at, ticket.needs), default=0.0)
    return min(waited, time.time() - built_at) if built_at > ticket.written else waited


def has_environment(ticket: Ticket) -> bool:
    """Return whether the job's environment is there."""
    return all(map(os.path.exists, ticket.needs))


def _built_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        # The environment does not exist yet, so the wait for the turn has not begun.
        return time.time()


def is_cancelled(ticket: Ticket) -> bool:
    """Return whether the job was asked to end."""
    return os.path.exists(os.path.join(ticket.home, layout.CANCEL))


class JobTicket:
    """The ticket.

    Attributes:
        queue: Where it is, or would be.
        standing: The one with which the job waited when this process came; None without one.
        submitted: When the job came into the queue, in nanoseconds since the machine's start; 0 if it has just come.
        asked: What the job asks for.
        limits: What all jobs of its user may have together.
        needs: Files without which its environment is not there.
        after: The jobs whose values it takes.
    """

    def __init__(self, job: "JobFolder") -> None:
        self.job = job
        self.queue = Queue(job.root)
        self.standing = self.queue.of(job.id)
        self.submitted: "int" = self.standing.submitted if self.standing else 0
        self.asked = machine.demand_of(job.spec)
        self.limits = machine.limits_of(job.spec)
        building = job.spec.get("building")
        self.needs: "list[str]" = []
        if building:
            self.needs.append(os.path.join(layout.environment_dir(building["root"], building["id"]), layout.READY))
        self.after = dependencies_of(job.spec)
        self._resumes = bool((job.spec.get("requeue") or {}).get("node")) and job.element is None

    def own(self) -> Ticket:
        """Return the ticket, or the one that the job would get."""
        return self.standing or self.queue.as_ticket(self._fields(""))

    def write(self, reason: str) -> None:
        """Let the job wait from now on."""
        self.queue.write(self._fields(reason))
        self.note(reason)

    def note(self, reason: str) -> None:
        """Say in the journal that the job waits."""
        self.record(TICKET, asked=self.asked, submitted=self.submitted, reason=reason)

    def record(self, event: str, **facts: object) -> None:
        """Add a line on the job to the journal."""
        record_event(self.job.root, event, self.job.id, **facts)

    def replace_claim(self, reason: str) -> None:
        """Write it in place of the claim of the job, which has begun; keep the claim if there is no room for that."""
        self.submitted = machine.now_ns()
        claim, aside = (os.path.join(self.job.folder, name) for name in (layout.CLAIM, "." + layout.CLAIM))
        # The function may have removed the claim: it may do anything in the job's folder.
        with contextlib.suppress(FileNotFoundError):
            # A ticket counts only while there is no claim. The claim is renamed, because a full disk may have no room
            # for a new one.
            os.rename(claim, aside)
        try:
            self.queue.write(dict(self._fields(reason), queue_timeout_s=None))
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.rename(aside, claim)
            raise
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)

    def keep_for_restart(self) -> None:
        """Keep it aside, by which the job is queued again if the machine restarts, where `requeue=` says so."""
        if self._resumes:
            kept_aside(self.job.root).write(self._fields(""))

    def forget_for_restart(self) -> None:
        """Remove what is kept for a restart."""
        if self._resumes:
            kept_aside(self.job.root).remove(self.job.id)

    def _fields(self, reason: str) -> "dict[str, object]":
        job = self.job
        spec = self.job.spec
        return {
            "job": job.id,
            "name": spec["name"],
            "folder": job.folder,
            "home": job.home,
            "element": job.element,
            "submitted": self.submitted,
            "t": time.time(),
            "reason": reason,
            "asked": self.asked._asdict(),
            "limits": self.limits._asdict(),
            "resources": spec["resources"],
            "priority": spec.get("priority") or 0,
            "queue_timeout_s": spec["queue_timeout_s"],
            "bridge": spec["bridge"],
            "needs": self.needs,
            "after": spec.get("after"),
            "env": environment_of(os.getppid()),
        }


def environment_of(pid: int) -> "dict[str, str]":
    """Return the variables with which job.sh was started in this process: it may have changed this one's own."""
    is_script = any(word.endswith(os.fsencode(layout.SCRIPT)) for word in process_tree.command_line(pid)[1:2])
    of_process = process_tree.environment_of(pid) if is_script else None
    # A fork of the agent has changed none. The process of job.sh may also have been killed.
    variables = dict(os.environ) if of_process is None else of_process
    return {name: value for name, value in variables.items() if name != layout.TURN}


_LARGEST = 16 << 20

TICKET, WITHDRAWN, TAKEN, EXCHANGED, RELEASED = "ticket", "withdrawn", "taken", "exchanged", "released"


def record_event(root: str, event: str, job: str, **facts: "Any") -> None:
    """Append a line to the journal; times are wall seconds."""
    line = dict(facts, event=event, job=job, t=round(time.time(), 6))
    if isinstance(line.get("asked"), Demand):
        line["asked"] = dict(line["asked"]._asdict())
    folder = machine.folder(root)
    path = os.path.join(folder, layout.HOLDS)
    # The journal is for people: a full disk does not end a job, and a root that is gone by now is not made again.
    with contextlib.suppress(OSError):
        for each, mode in ((os.path.dirname(folder), 0o777), (folder, 0o700)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(each, mode)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, (json.dumps(line) + "\n").encode())
            large = os.fstat(fd).st_size > _LARGEST
        finally:
            os.close(fd)
        if large:
            # This replaces the older part of the journal.
            os.rename(path, path + ".1")
