"""Let jobs of one client be admitted in the order in which they were sent.

An agent starts jobs in that order, but their supervisors race. So each waits until the job right before it has asked
for admission. Where /proc has no lists of children, no job waits.
"""

import os
import time
from collections import namedtuple

from ..layout import ELEMENTS, SCRIPT
from ..supervisor import process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

_PATIENCE_S = 2.0  # lines of setup: may take longer
_LOOK_S, _LOOK_MOST_S = 0.004, 0.1


# A job that was sent before this one: the pid of its job.sh, and when that was started (in ticks since boot). Then the
# job's id (that of an element with its number), and the folder where its claim will be.
EarlierJob = namedtuple("EarlierJob", ("pid", "start", "job", "folder"))


def wait_for_earlier_submissions(script: int, has_come: "Callable[[EarlierJob], bool]") -> None:
    """Return when the job before has asked for admission, or has not done so for two seconds.

    Args:
        script: The pid of the own job.sh.
        has_come: Returns whether a job has asked.
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
    found = []
    for start, pid in sorted((start, pid) for start, pid in starts if start is not None):
        words = [os.fsdecode(word) for word in process_tree.command_line(pid)] if (start, pid) < (own, script) else []
        if len(words) in (2, 3) and os.path.basename(words[1]) == SCRIPT:
            home = os.path.dirname(words[1])
            job = ".".join([os.path.basename(home)] + words[2:])
            folder = os.path.join(home, ELEMENTS, words[2]) if words[2:] else home
            found.append(EarlierJob(pid, start, job, folder))
    return found


def _start_of(pid: int) -> "Optional[int]":
    return int(process_tree.start_time(pid) or 0) if process_tree.is_alive(pid) else None
