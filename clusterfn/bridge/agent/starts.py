"""Start programs when there is room for them: a process, and descriptors of this one. Others wait in their order.

Few jobs begin at a time. A loop submits hundreds, whose supervisors would take the cores from the jobs that run.
"""

import contextlib
import errno
import os
import resource
import time
from collections import deque

from .files import make_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Deque, Optional


# How long a start is retried, and at which interval, while the machine has no process or descriptor left for the user.
PATIENCE_S = 60.0
AGAIN_S = 0.2
_NONE_LEFT = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# The descriptors that a program needs while it starts, and those that its pipes need while it runs.
FILES_AT_START = 8
FILES_OF_RUN = 3
_OTHER_FILES = 128
_FEWEST = 4
_MOST = 500
# A supervisor that finds others waiting writes a ticket and ends. One that runs for longer has its job, so the next job
# may begin.
BEGINS_S = 0.5
_BEGIN_PER_CORE = 2
# A note of jobs that wait is believed for two minutes.
RENEW_S = 20.0


def room_for_programs() -> int:
    """Return the descriptors of this process with which programs may start."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most, fewest = _MOST * FILES_AT_START, _FEWEST * FILES_AT_START
    return most if files < 0 else max(fewest, min(most, files - _OTHER_FILES))


def usable_cores() -> int:
    """Return on how many cores the processes of this agent may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs_at_a_time() -> int:
    """Return how many jobs may begin at a time."""
    return _BEGIN_PER_CORE * (1 + usable_cores())


class ProgramStarts:
    """Starts programs in the order in which they come. One that finds no room waits, and so do those behind it.

    A login node may let a user have a few processes (`ulimit -u`) and descriptors (`ulimit -n`), and hundreds of jobs
    may be submitted at once.

    Args:
        at: As `Agent.at`.
        room: What all that start may take together.
        share: What each of them takes, until `has_room` says otherwise.
    """

    def __init__(self, at: "Callable[[float, Callable[[], None]], object]", room: int, share: int) -> None:
        self._at = at
        self._room = room
        self._share = share
        self._waiting: "Deque[Callable[[], Optional[bool]]]" = deque()
        self._is_due = False
        self._none_since: "Optional[float]" = None

    @property
    def are_waiting(self) -> bool:
        """Whether a start waits."""
        return bool(self._waiting)

    def add(self, start: "Callable[[], Optional[bool]]") -> None:
        """Call `start` once there is room: it says whether it has started a program, or None to be called again."""
        self._waiting.append(start)
        self._start_next()

    def has_room(self, released: int) -> None:
        """Take note that a program no longer holds so much."""
        self._room += released
        self._start_next()

    def lacks_room(self, error: OSError) -> bool:
        """Whether a start failed because there is nothing to be had for it now, and has not done so for too long."""
        now = time.monotonic()
        self._none_since = self._none_since or now
        return error.errno in _NONE_LEFT and now - self._none_since <= PATIENCE_S

    def _start_next(self) -> None:
        while self._waiting and self._room >= self._share:
            has_started = self._waiting[0]()
            if has_started is None:
                self._start_later()
                return
            self._waiting.popleft()
            self._none_since = None
            self._room -= self._share if has_started else 0

    def _start_later(self) -> None:
        def start() -> None:
            self._is_due = False
            self._start_next()

        if not self._is_due:
            self._is_due = True
            self._at(AGAIN_S, start)


class WaitingNote:
    """Says by the date of a file that jobs wait here for their turn: else other programs would take them for lost.

    Args:
        at: As `Agent.at`.
        starts: Those of the jobs.
    """

    def __init__(self, at: "Callable[[float, Callable[[], None]], object]", starts: ProgramStarts) -> None:
        self._at = at
        self._starts = starts
        self._is_renewed = False

    def keep(self, path: str) -> None:
        """Renew the date of this file as long as a job waits."""
        if self._starts.are_waiting and not self._is_renewed:
            self._is_renewed = True
            self._renew(path)

    def _renew(self, path: str) -> None:
        self._is_renewed = self._starts.are_waiting
        if not self._is_renewed:
            return
        with contextlib.suppress(OSError):
            # The disk is full, or its server is away. The jobs start all the same.
            make_parent(path)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.utime(path)
        self._at(RENEW_S, lambda: self._renew(path))
