"""Takes GPUs on a machine without a scheduler: k cards or none, waiting its turn, never one that somebody uses.

A card is held by listening on an abstract unix socket named after it: visible to every user of the machine, refused to
a second holder, gone with the last process that holds it. Who waits connects to the holders and is woken by hang-up.
`lease: file` holds a lock on a file instead, for jobs in network namespaces of their own. Called by `run`.
"""

import errno
import fcntl
import json
import os
import re
import select
import socket
import struct
import time

from ...layout import MACHINES, UNSATISFIABLE
from . import nvidia, retries
from .candidates import candidates
from .text import duration
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Union

    from .attempt import Attempt
    from .job import Job
    from .watch import Watch

    Mark = Union["SocketMark", "FileMark"]

_LOOK_AGAIN_S = 5.0  # for cards whose users hold nothing that could wake us
_TURN_MS = 200
_FILES = "/tmp"
_PEER = getattr(socket, "SO_PEERCRED", 17)  # Linux's; elsewhere there are no cards


class SocketMark:
    """A card held by a listening abstract socket."""

    def __init__(self, uuid: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(_address(uuid))
            self._socket.listen(64)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """What the worker inherits."""
        return self._socket.fileno()

    def close(self) -> None:
        """Give it back, as far as this process is concerned."""
        self._socket.close()


class FileMark:
    """A card held by a lock on a file that every user can open."""

    def __init__(self, uuid: str) -> None:
        self._fd = _open_shared("%s/clusterfn-gpu-%s" % (_FILES, uuid))
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        """What the worker inherits."""
        return self._fd

    def close(self) -> None:
        """Give it back, as far as this process is concerned."""
        os.close(self._fd)


def _open_shared(path: str) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        before = os.umask(0)
        try:
            return os.open(path, flags | os.O_CREAT, 0o444)
        finally:
            os.umask(before)


def _address(uuid: str) -> bytes:
    return b"\0clusterfn/gpu/" + uuid.encode()


class Holder:
    """Somebody who holds a card: who it is, and a connection that ends with the last process of theirs."""

    def __init__(self, uuid: str) -> None:
        self.who = "somebody"
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.setblocking(False)
        try:
            self.connection.connect(_address(uuid))
            raw = self.connection.getsockopt(socket.SOL_SOCKET, _PEER, 12)
            self.who = nvidia.user_name(struct.unpack("3i", raw)[1])
        except OSError:  # gone already, or too many wait at its door: we look again
            self.connection.close()

    def waits(self) -> bool:
        """Whether its end will wake us."""
        return self.connection.fileno() >= 0


class Cards:
    """The cards of one job, held.

    Attributes:
        uuids: In PCI order.
    """

    def __init__(self, job: "Job", marks: "dict[str, Mark]") -> None:
        self.uuids = list(marks)
        self._job = job
        self._marks = marks
        self._taken = round(time.time(), 3)
        self._record(None)

    def worker_fds(self) -> "list[int]":
        """What the worker must inherit to hold them too."""
        return [mark.fileno() for mark in self._marks.values()]

    def release(self) -> None:
        """Give them back; the journal's time is from before, so that whoever takes one next is later."""
        released = round(time.time(), 3)
        for mark in self._marks.values():
            mark.close()
        self._record(released)

    def _record(self, released: "Optional[float]") -> None:
        """A line per card in the machine's journal, if there is one."""
        folder = os.path.join(self._job.root, MACHINES, machine_name())
        if not os.path.isdir(os.path.dirname(folder)):
            return
        os.makedirs(folder, mode=0o700, exist_ok=True)
        fd = os.open(os.path.join(folder, "holds.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for uuid in self.uuids:
                line = {"uuid": uuid, "job": self._job.id, "taken": self._taken, "released": released}
                os.write(fd, (json.dumps(line) + "\n").encode())
        except OSError:  # the journal is for people; a full disk does not end a job
            return
        finally:
            os.close(fd)


def machine_name() -> str:
    """<machine-id>-<hostname>: cloned images share the first, a home may be shared by machines."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        if os.path.exists(path):
            with open(path) as file:
                return _safe("%s-%s" % (file.read().strip(), os.uname()[1]))
    return _safe("unknown-%s" % os.uname()[1])


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def take(job: "Job", attempt: "Attempt", watch: "Watch", wanted: int) -> Cards:
    """Hold `wanted` cards, waiting for them as long as the job allows.

    Raises:
        Verdict: The machine has fewer, waiting took too long, nvidia-smi fails, or the job was ended meanwhile.
    """
    attempt.beat()
    every = retries.in_place_of(candidates(job.spec["resources"]), job.failed_cards, wanted)
    limit = job.spec["queue_timeout_s"]
    until = None if limit is None else time.monotonic() + limit
    told = ""
    while True:
        marks, strangers = _collect(job, every, wanted)
        if len(marks) == wanted:
            return Cards(job, marks)
        holders = _holders(job, [uuid for uuid in every if uuid not in strangers])
        reason = _reason(len(every), wanted, [holder.who for holder in holders], list(strangers.values()))
        if reason != told:
            told = reason
            attempt.wait(reason)
        if until is not None and time.monotonic() >= until:
            raise _waited(limit, reason)
        _wait(watch, holders, until)


def _collect(job: "Job", every: "list[str]", wanted: int) -> "tuple[dict[str, Mark], dict[str, str]]":
    """Marks on `wanted` cards that nobody else uses, else none; and the cards that strangers use.

    Strangers are looked for after a card is marked: whoever holds no lease may have come at any time before.
    """
    marks: "dict[str, Mark]" = {}
    strangers: "dict[str, str]" = {}
    while True:
        for uuid in every:
            if len(marks) < wanted and uuid not in marks and uuid not in strangers:
                _try_mark(job, uuid, marks)
        if len(marks) < wanted:
            for mark in marks.values():
                mark.close()
            return {}, strangers
        met = nvidia.used_by_others(marks)
        if not met:
            return {uuid: marks[uuid] for uuid in every if uuid in marks}, strangers
        for uuid in met:
            marks.pop(uuid).close()
        strangers.update(met)


def _try_mark(job: "Job", uuid: str, marks: "dict[str, Mark]") -> None:
    try:
        marks[uuid] = FileMark(uuid) if job.spec["lease"] == "file" else SocketMark(uuid)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EWOULDBLOCK, errno.EACCES):
            raise


def _holders(job: "Job", uuids: "list[str]") -> "list[Holder]":
    """Whoever holds one of these cards now."""
    if job.spec["lease"] == "file":
        return []
    return [holder for holder in map(Holder, uuids) if holder.waits()]


def _reason(every: int, wanted: int, holders: "list[str]", strangers: "list[str]") -> str:
    """Why it waits: "8 of 8 GPUs held by ada (5), bob (3)"."""
    parts = []
    if holders:
        names = ["%s (%d)" % (name, holders.count(name)) for name in sorted(set(holders))]
        parts.append("%d of %d GPUs held by %s" % (len(holders), every, ", ".join(names)))
    if strangers:
        parts.append("%d in use without a lease: %s" % (len(strangers), ", ".join(strangers)))
    return "%s; waiting for %d" % ("; ".join(parts) or "too few of %d GPUs are free" % every, wanted)


def _wait(watch: "Watch", holders: "list[Holder]", until: "Optional[float]") -> None:
    """Until a holder lets go, or it is time to look again."""
    again = time.monotonic() + (_LOOK_AGAIN_S if holders else 1.0)
    again = min(again, until) if until is not None else again
    poll = select.poll()
    poll.register(watch.signals.fd, select.POLLIN)
    for holder in holders:
        poll.register(holder.connection.fileno(), select.POLLHUP)
    gone = False
    while not gone and time.monotonic() < again:
        gone = any(fd != watch.signals.fd for fd, _ in poll.poll(_TURN_MS))
        watch.look()
    for holder in holders:
        holder.connection.close()
    if gone:
        time.sleep(os.getpid() % 16 / 1000.0)  # all are woken at once: let them not take each other's cards in turn


def _waited(limit: float, reason: str) -> Verdict:
    return Verdict(
        UNSATISFIABLE,
        "no GPUs became free within the %s of queue_timeout: %s" % (duration(limit), reason),
        stage="lease",
        hint="call again later, allow a longer queue_timeout, or choose another host",
    )
