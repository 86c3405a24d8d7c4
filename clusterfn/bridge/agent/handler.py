"""The base of all request handlers, what they share, the errors that they answer with, and how they read a request."""

import errno
import heapq
import os
import time
import traceback

from .disk_sync import DiskSync
from .file_watcher import FileWatcher, StillWatcher
from .files import MissingPaths, disk_left
from .frames import Inbox, Outbox, Sender
from .starts import FILES_AT_START, ProgramStarts, WaitingNote, jobs_at_a_time, room_for_programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple

    from .frames import Frame, Header
    from .trusted import Trusted


KINDS = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
}


class Failure(Exception):
    """An expected error, which is sent to the client as the answer."""

    def __init__(self, kind: str, message: str, path: str = "", number: int = 0, **more: "Any") -> None:
        Exception.__init__(self, message)
        self.data = dict(more, kind=kind, message=message)
        if path:
            self.data["path"] = path
        if number:
            self.data["errno"] = number


def failure_of(error: OSError, path: str, **more: "Any") -> Failure:
    """Translate an error of the operating system for the client."""
    number = error.errno or 0
    kind = KINDS.get(number, "io")
    if kind == "full":
        more.update(disk_left(path))
    return Failure(kind, os.strerror(number) if number else str(error), path, number, **more)


def unsafe(objection: "Tuple[str, str]", root: str, inside: str = "") -> Failure:
    """Return the failure for a folder, and why another user could change what is in it (`Trusted.objection`)."""
    folder, why = objection
    facts = {"own": os.lstat(folder).st_uid == os.geteuid(), "below": folder.startswith(root + "/")}
    return Failure("refused", "%s%s: another user could plant code or a result there" % (why, inside), folder, **facts)


def expand(path: str) -> str:
    """Return an absolute path. If it is not absolute yet, expand `$VAR` of this host (an unknown one stays), then `~/`.

    The names of a user's files are below an absolute path, and a `$` in them is a part of the name.
    """
    full = path if path.startswith("/") else os.path.expanduser(os.path.expandvars(path))
    if "\0" in full or not os.path.isabs(full):
        raise Failure("bad", "not an absolute path on this host", path)
    return os.path.normpath(full)


def seconds(header: "Header", name: str, default: float) -> float:
    """Read a duration from a request. Reject a negative one, which would keep the loop busy."""
    value = header.get(name)
    value = default if value is None else value
    if not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise Failure("bad", "%s is no number of seconds: %r" % (name, value))
    return float(value)


class Timer:
    """One action, and when it is due."""

    __slots__ = ("_action", "_number", "due")

    def __init__(self, due: float, number: int, action: "Callable[[], None]") -> None:
        self.due = due
        self._number = number
        self._action = action

    def __lt__(self, other: "Timer") -> bool:
        return (self.due, self._number) < (other.due, other._number)

    def drop(self) -> None:
        """Do nothing when it is due, and keep nothing in memory until then: time limits are long, programs are not."""
        self._action = _nothing

    def run(self) -> None:
        self._action()


def _nothing() -> None:
    """Take the place of an action that was dropped."""


class Timers:
    """Runs actions when they are due, in this order; those of the same moment in the order in which they were added."""

    def __init__(self) -> None:
        self.heap: "List[Timer]" = []
        self.counter = 0

    def at(self, seconds: float, action: "Callable[[], None]") -> Timer:
        """Add an action that is due so many seconds from now."""
        self.counter += 1
        timer = Timer(time.monotonic() + seconds, self.counter, action)
        heapq.heappush(self.heap, timer)
        return timer

    def first_due(self) -> float:
        return self.heap[0].due if self.heap else float("inf")

    def run_due(self, now: float) -> None:
        while self.heap and self.heap[0].due <= now:
            heapq.heappop(self.heap).run()


class AgentServices:
    """What the handlers of one agent share.

    Attributes:
        children: Takes the status of each child process, by its pid.
        readers: What the loop calls once this descriptor can be read.
        writers: What it calls once this one can be written to.
        last_received: When something last came from the client, by time.monotonic().
    """

    last_received = float("-inf")

    def __init__(self, sink: int) -> None:
        self.out = Outbox(sink)
        self.inbox = Inbox()
        self.requests: "Dict[int, RequestHandler]" = {}
        self.children: "Dict[int, Callable[[int], None]]" = {}
        self.readers: "Dict[int, Callable[[int], None]]" = {}
        self.writers: "Dict[int, Callable[[int], None]]" = {}
        self.timers = Timers()
        self.at = self.timers.at
        self.disk_sync = DiskSync(self.children)
        self.starts = ProgramStarts(self.at, room_for_programs(), FILES_AT_START)
        self.job_starts = ProgramStarts(self.at, jobs_at_a_time(), 1)
        self.waiting_note = WaitingNote(self.at, self.job_starts)
        self.swept: "Set[str]" = set()
        self.needs = MissingPaths()
        self.watcher = FileWatcher(self.readers, self.at)
        self.stills = StillWatcher(self.at)
        self.root = self.machine = ""
        # The users who may write below the root; the hello names them.
        self.trusted: "Optional[Trusted]" = None
        self.umask = 0o077

    def forked_job(self, header: "Header") -> "Any":
        """Return a job to be forked from this process (`ForkedJob`); None if it must start by its script."""
        raise NotImplementedError

    def forget(self, request: "RequestHandler", error: "Optional[Header]") -> None:
        """Remove a request that has ended, and start or skip those that waited for it."""
        raise NotImplementedError


def either(key: str, having: "Callable[..., RequestHandler]", lacking: "Callable[..., RequestHandler]") -> "Any":
    """Return what makes one of two handlers: the first if the request has the key, else the second."""
    return lambda agent, header, body: (having if key in header else lacking)(agent, header, body)


class RequestHandler(Sender):
    """Handles one request; it ends exactly once, by `end` or `fail`."""

    def __init__(self, agent: "AgentServices", header: "Header", body: bytes) -> None:
        self.agent = agent
        self.id: "int" = header["id"]
        self.header = header
        self.body = body
        self.after: "Set[int]" = set()
        self.started = False
        self.timer: "Optional[Timer]" = None

    def begin(self) -> None:
        """Act on arrival, before the requests that it waits for (`after`) have ended."""

    def start(self) -> None:
        """Act once the requests that it waits for have ended."""

    def chunk(self, body: "Frame", header: "Header") -> None:
        """Take bytes of the client."""
        raise Failure("bad", "this request does not take chunks")

    def stop(self) -> None:
        """End it at the client's request."""
        self.fail(Failure("stopped", "stopped on request"))

    def release(self) -> None:
        """Release what it holds: files, locks, programs, watches."""

    def own(self, path: str) -> str:
        """Return an absolute path, as `expand`; raise if another user could replace what clusterfn has there."""
        full = expand(path)
        agent = self.agent
        objection = agent.trusted.objection_below(agent.root, full) if agent.trusted is not None else None
        if objection is not None:
            raise unsafe(objection, agent.root)
        return full

    def later(self, delay_s: float, action: "Callable[[], None]") -> None:
        """Do this after so long, unless the request has ended or another `later` has replaced it."""
        if self.timer:
            self.timer.drop()
        self.timer = None if self.ended else self.agent.at(delay_s, action)

    def send(self, header: "Header", body: bytes = b"") -> None:
        self.agent.out.answer(dict(header, id=self.id), body)

    def end(self, body: bytes = b"", **more: "Any") -> None:
        self.close(None, dict(more, end=True, ok=True), body)

    def fail(self, failure: Failure, body: bytes = b"", **more: "Any") -> None:
        self.close(failure.data, dict(more, end=True, ok=False, error=failure.data), body)

    def close(self, error: "Optional[Header]", header: "Optional[Header]", body: bytes = b"") -> None:
        """End it with this answer; None: the caller sends its last answer itself."""
        if self.ended:
            return
        self.ended = True
        if self.timer:
            self.timer.drop()
        self.release()
        if header is not None:
            self.send(header, body)
        self.agent.forget(self, error)
        # A program's handler and its watcher refer to each other until the garbage collector runs; the header may be
        # large.
        self.header = {}

    def safely(self, action: "Callable[[], Any]") -> "Any":
        try:
            return action()
        except Failure as failure:
            self.fail(failure)
        except OSError as error:
            self.fail(failure_of(error, str(error.filename or self.header.get("path") or "")))
        except (KeyError, TypeError, ValueError) as error:
            self.fail(Failure("bad", "%s: %s" % (type(error).__name__, error)))
        except Exception:  # noqa: BLE001 - the agent's outermost frame: other requests must continue; the client gets all of it
            self.fail(Failure("bad", traceback.format_exc()))
        return None
