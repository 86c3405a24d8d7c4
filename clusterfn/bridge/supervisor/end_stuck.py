"""End a job that was asked to stop and has not: `supervise.py end JOB`, on a machine without a scheduler.

Its supervisor may be stopped by a signal, or hang on a file system. It gets time to end the job itself, then job.sh
gets it, and then this process concludes the job: by the same link as they, so that the first one wins. What a scheduler
runs is ended by the scheduler.
"""

import json
import os
import signal
import sys
import time

from ..layout import CLAIM, SUPERVISE
from . import conclude, notify, process_tree
from .attempt import final_attempt, script_of
from .job import JobFolder
from .watch import cancelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_ENDS_ITSELF_S, _AFTER_S, _DIES_S = 3.0, 4.0, 3.0
_LOOK_S = 0.05


def end_stuck(folder: str) -> int:
    """End it, and print which of its processes could not be ended."""
    job = JobFolder(folder)
    parts = [] if job.scheduler.has_nodes else [part for part in _parts(job) if _is_open(part)]
    for part in parts:
        for pid in _script(part) + _supervisors(part):
            process_tree.wake(pid)
    parts = _await_ends(parts, _ENDS_ITSELF_S)
    for part in parts:
        _kill(_supervisors(part))
    parts = _await_ends(parts, _AFTER_S)
    left = []  # type: list[str]
    for part in parts:
        _kill(_script(part) + _supervisors(part, "run", "after"))
        if conclude.conclude_by(part, cancelled())[0] is not None:
            notify.tell_end(part.home)
        numbers = part.attempts()
        left += process_tree.end(_of_part(part, numbers[-1] if numbers else 1), lambda: None, _DIES_S)
    sys.stdout.write(json.dumps({"left": left}) + "\n")
    return 0


def _parts(job: JobFolder) -> "list[JobFolder]":
    """Return the job itself; of a group its elements."""
    return job.elements() if job.spec.get("group") else [job]


def _is_open(job: JobFolder) -> bool:
    """Whether a process has it, and it has no outcome."""
    return os.path.exists(os.path.join(job.folder, CLAIM)) and final_attempt(job) is None


def _await_ends(jobs: "list[JobFolder]", most_s: float) -> "list[JobFolder]":
    """Return those of which none has concluded by then."""
    until = time.monotonic() + most_s
    while jobs and time.monotonic() < until:
        time.sleep(_LOOK_S)
        jobs = [job for job in jobs if _is_open(job)]
    return jobs


def _script(job: JobFolder) -> "list[int]":
    """Return the job.sh that has claimed it, unless it is gone."""
    return [pid for pid in [script_of(job)] if pid]


def _supervisors(job: JobFolder, *commands: str) -> "list[int]":
    """Return the processes of this user that run one of these commands, `run` by default, for the job."""
    return [pid for command in commands or ("run",) for pid in process_tree.of_command(SUPERVISE, command, job.folder)]


def _of_part(job: JobFolder, attempt: int) -> "Callable[[], list[int]]":
    return lambda: process_tree.tagged(job.id, attempt) + _supervisors(job, "run", "after")


def _kill(pids: "list[int]") -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            # It has just ended.
            continue
