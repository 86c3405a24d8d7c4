"""Let jobs of one client be admitted in the order in which they were sent.

An agent starts jobs in that order, but their supervisors race. So each waits until the job right before it has been at
the door; that one has let those before it pass. Where /proc has no lists of children, no job waits.
"""

import os
import time

from ..layout import ELEMENTS, SCRIPT
from ..supervisor import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

_PATIENCE_S = 2.0  # lines of setup: may take longer
_LOOK_S, _LOOK_MOST_S = 0.004, 0.1


class EarlierJob:
    """A job that was sent before this one.

    Attributes:
        pid: Of its job.sh.
        start: When that was started, in ticks since boot.
        job: Its id, that of an element with its number.
        folder: Where its claim will be.
    """

    def __init__(self, pid: int, start: int, job: str, folder: str) -> None:
        self.pid = pid
        self.start = start
        self.job = job
        self.folder = folder


def wait_for_earlier_submissions(script: int, has_come: "Callable[[EarlierJob], bool]") -> None:
    """Return when the one before has been at the door, or has not come for two seconds.

    Args:
        script: The pid of the own job.sh.
        has_come: Whether one has been at the door.
    """
    until, pause = time.monotonic() + _PATIENCE_S, _LOOK_S
    older = _older_than(script)
    while older and not has_come(older[-1]) and time.monotonic() < until:
        if _start_of(older[-1].pid) != older[-1].start:  # its script has ended
            older.pop()
            continue
        time.sleep(pause)
        pause = min(pause * 1.5, _LOOK_MOST_S)


def _older_than(script: int) -> "list[EarlierJob]":
    agent, own = process_tree.parent_of(script), _start_of(script)
    if agent <= 1 or own is None:
        return []
    starts = ((_start_of(pid), pid) for pid in process_tree.children_of_thread(agent, agent))
    older = sorted((start, pid) for start, pid in starts if start is not None and (start, pid) < (own, script))
    return [each for each in (_as_job(pid, start) for start, pid in older) if each is not None]


def _as_job(pid: int, start: int) -> "Optional[EarlierJob]":
    words = [os.fsdecode(word) for word in process_tree.command_line(pid)]
    if len(words) not in (2, 3) or os.path.basename(words[1]) != SCRIPT:
        return None
    home = os.path.dirname(words[1])
    job = ".".join([os.path.basename(home)] + words[2:])
    return EarlierJob(pid, start, job, os.path.join(home, ELEMENTS, words[2]) if words[2:] else home)


def _start_of(pid: int) -> "Optional[int]":
    """In ticks since boot; None if it has ended."""
    return int(process_tree.start_time(pid) or 0) if process_tree.is_alive(pid) else None
