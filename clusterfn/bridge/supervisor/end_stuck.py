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

_ENDS_ITSELF_S, _AFTER_S, _DIES_S = 3.0, 4.0, 3.0
_LOOK_S = 0.05


def end_stuck(folder: str) -> int:
    """End it, and print which of its processes could not be ended."""
    job = JobFolder(folder)
    parts = job.elements() if job.spec.get("group") else [job]
    parts = [] if job.scheduler.has_nodes else [part for part in parts if _is_open(part)]
    for part in parts:
        for pid in _script(part) + _supervisors(part):
            process_tree.wake(pid)
    parts = _await_ends(parts, _ENDS_ITSELF_S)
    for part in parts:
        process_tree.send_signal(_supervisors(part), signal.SIGKILL)
    parts = _await_ends(parts, _AFTER_S)
    left = [name for part in parts for name in _end(part)]
    sys.stdout.write(json.dumps({"left": left}) + "\n")
    return 0


def _end(part: JobFolder) -> "list[str]":
    """Kill all of it, and conclude it; return the names of processes that could not be ended."""
    process_tree.send_signal(_script(part) + _supervisors(part, "run", "after"), signal.SIGKILL)
    if conclude.conclude_by(part, cancelled())[0] is not None:
        notify.tell_end(part.home)
    attempt = max(part.attempts(), default=1)

    def living() -> "list[int]":
        return process_tree.tagged(part.id, attempt) + _supervisors(part, "run", "after")

    return process_tree.end(living, lambda: None, _DIES_S)


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
