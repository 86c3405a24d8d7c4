"""Let jobs be admitted one at a time, and those of one client in the order in which they were sent.

An agent starts jobs in that order, but their supervisors race. So each waits until the job right before it has asked
for admission. Where /proc has no lists of children, no job waits. Then it takes the lock of all admissions.
"""

import os
import time
from collections import namedtuple

from ..layout import ELEMENTS, SCRIPT
from ..supervisor import process_tree
from ..supervisor.verdict import say
from . import lease_names
from .lease import holder_in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping, Optional

    from .lease import Lease, Leases

# The lines of `setup:` in job.sh run before the supervisor and may take longer than this. Then the order is given up.
_PATIENCE_S = 2.0
_LOOK_S, _LOOK_MOST_S = 0.004, 0.1
_LOCK_S = 5.0
# No healthy process needs the lock of all admissions for longer than this.
KEPT_S = 2.0
_POLL_S, _TRIES = 0.002, 25


# A job that was sent before this one: the pid of its job.sh, and when that was started (in ticks since boot). Then the
# job's id (that of an element with its number), and the folder where its claim will be.
EarlierJob = namedtuple("EarlierJob", ("pid", "start", "job", "folder"))


# What the agent has said of the jobs before, in a fork of it: the words of their scripts, by their pids.
_named: "Optional[Mapping[int, list[str]]]" = None


def name_earlier(scripts: "Mapping[int, list[str]]") -> None:
    """Take the scripts that were started before from the agent: /proc may show those of the last moment as forks."""
    global _named
    _named = scripts


def wait_for_earlier_submissions(script: int, has_come: "Callable[[EarlierJob], bool]") -> None:
    """Return when the job before has asked for admission, or has not done so for two seconds.

    Args:
        script: The pid of the own job.sh.
        has_come: Returns whether a job has asked.
    """
    until, pause = time.monotonic() + _PATIENCE_S, _LOOK_S
    older = _older_than(script)
    while older and not has_come(older[-1]) and time.monotonic() < until:
        # The script of that job has ended, so the one before it is the next to wait for.
        if _start_of(older[-1].pid) != older[-1].start:
            older.pop()
            continue
        time.sleep(pause)
        pause = min(pause * 1.5, _LOOK_MOST_S)


def _older_than(script: int) -> "list[EarlierJob]":
    agent, own = process_tree.parent_of(script), _start_of(script)
    if agent <= 1 or own is None:
        return []
    pids = process_tree.children_of_thread(agent, agent) if _named is None else list(_named)
    starts = ((_start_of(pid), pid) for pid in pids)
    earlier = []
    for start, pid in sorted((start, pid) for start, pid in starts if start is not None):
        found = _job_of(pid) if (start, pid) < (own, script) else None
        if found is not None:
            earlier.append(EarlierJob(pid, start, *found))
    return earlier


def _job_of(pid: int) -> "Optional[tuple[str, str]]":
    """Return the job of a child of the agent, and the folder where its claim will be; None if it has none."""
    named = (_named or {}).get(pid)
    words = named or [os.fsdecode(word) for word in process_tree.command_line(pid)]
    if len(words) in (2, 3) and os.path.basename(words[1]) == SCRIPT:
        home, element = os.path.dirname(words[1]), words[2:]
    else:
        # A fork shows the words of the agent, and is in the job's folder (`supervisor/in_place`).
        home, element = process_tree.folder_of(pid), []
        above, number = os.path.split(home)
        if os.path.basename(above) == ELEMENTS:
            home, element = os.path.dirname(above), [number]
        if not os.path.exists(os.path.join(home, SCRIPT)):
            return None
    job = ".".join([os.path.basename(home), *element])
    return job, os.path.join(home, ELEMENTS, *element) if element else home


def _start_of(pid: int) -> "Optional[int]":
    return int(process_tree.start_time(pid) or 0) if process_tree.is_alive(pid) else None


class AdmissionLock:
    """The lock of all admissions, for a with block, unless a process keeps it for ever: then the names alone decide.

    Args:
        leases: How names are held here.
        kept: Its keeper, as the spooler has seen it.

    Attributes:
        is_held: Whether this process has it.
    """

    def __init__(self, leases: "Leases", kept: str = "") -> None:
        self._leases = leases
        self._kept = kept
        self._lock: "Optional[Lease]" = None

    @property
    def is_held(self) -> bool:
        return self._lock is not None

    def __enter__(self) -> "AdmissionLock":
        self._lock = self._take()
        if self._lock is None:
            self._kept = self._leases.keeper(lease_names.ADMISSION)
            who = holder_in_words(self._leases, lease_names.ADMISSION)
            say("%s keeps the lock of the queue: this job does not wait for it" % who)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _take(self) -> "Optional[Lease]":
        until = time.monotonic() + _LOCK_S
        holder, since = "", 0.0
        while True:
            for _ in range(_TRIES):
                lock = self._leases.hold(lease_names.ADMISSION)
                if lock is not None:
                    return lock
                time.sleep(_POLL_S)
            now, before, holder = time.monotonic(), holder, self._leases.keeper(lease_names.ADMISSION)
            since = since if holder == before else now
            if now > until or holder and (holder == self._kept or now > since + KEPT_S):
                return None
