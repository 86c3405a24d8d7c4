"""The job that the same program has sent just before, and that is still on its way to the door: whoever comes after it
lets it pass, because an agent starts jobs in the order in which they were sent, but their supervisors race.

It has let those before it pass, so nobody needs to look at them. Reads /proc; where that has no list of children,
nobody waits.
"""

import os
import time

from ..layout import ELEMENTS, SCRIPT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, Optional

_PATIENCE_S = 2.0  # lines of setup: may take longer
_LOOK_S, _LOOK_MOST_S = 0.004, 0.1


class EarlierJob:
    """One of them.

    Attributes:
        job: Its id, that of an element with its number.
        folder: Where its claim will be.
    """

    def __init__(self, pid: int, start: int, job: str, folder: str) -> None:
        self.pid = pid
        self.start = start
        self.job = job
        self.folder = folder

    def is_there(self) -> bool:
        """Whether its script still runs."""
        return _start_of(self.pid) == self.start


def wait_for_earlier_submissions(script: int, has_come: "Callable[[EarlierJob], bool]") -> None:
    """Return when the one before has been at the door, or has not come for two seconds.

    Args:
        script: The pid of the own job.sh.
        has_come: Whether one has been at the door.
    """
    until, pause = time.monotonic() + _PATIENCE_S, _LOOK_S
    older = _older_than(script)
    while older and not has_come(older[-1]) and time.monotonic() < until:
        if not older[-1].is_there():
            older.pop()
            continue
        time.sleep(pause)
        pause = min(pause * 1.5, _LOOK_MOST_S)


def _older_than(script: int) -> "list[EarlierJob]":
    agent, own = _parent_of(script), _start_of(script)
    if agent <= 1 or own is None:
        return []
    starts = ((_start_of(pid), pid) for pid in _children_of(agent))
    older = sorted((start, pid) for start, pid in starts if start is not None and (start, pid) < (own, script))
    return [each for each in (_as_job(pid, start) for start, pid in older) if each is not None]


def _as_job(pid: int, start: int) -> "Optional[EarlierJob]":
    words = [os.fsdecode(word) for word in _read("/proc/%d/cmdline" % pid).split(b"\0")[:-1]]
    if len(words) not in (2, 3) or os.path.basename(words[1]) != SCRIPT:
        return None
    home = os.path.dirname(words[1])
    job = ".".join([os.path.basename(home)] + words[2:])
    return EarlierJob(pid, start, job, os.path.join(home, ELEMENTS, words[2]) if words[2:] else home)


def _children_of(pid: int) -> "Iterable[int]":
    return map(int, _read("/proc/%d/task/%d/children" % (pid, pid)).split())


def _parent_of(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[1]) if fields else 0


def _start_of(pid: int) -> "Optional[int]":
    """In ticks since the machine was started; None if it is gone."""
    fields = _fields(pid)
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else None


def _fields(pid: int) -> "list[bytes]":
    """Of its line in /proc, from its state on."""
    return _read("/proc/%d/stat" % pid).rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it ended meanwhile
        return b""
