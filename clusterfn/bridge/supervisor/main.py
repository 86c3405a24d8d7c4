"""Run a job, or an element of a group, to its published end.

job.sh starts it in the host's old Python as `supervise.py run JOB`; `commands` has the supervisor's other commands.
It must never unpickle anything or import the user's code. Imports within functions are of what a plain job does without
and would wait for.
"""

import os
import signal
import time

from ..agent.libc import become_subreaper, die_with_parent
from ..layout import EXIT_QUEUED, EXIT_RETURNED, LOOKED, NOTIFY
from .job import JobFolder
from .verdict import log_line
from .watch import Signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_DAY_S = 86400.0


def run(folder: str, status: "Optional[str]" = None, keeper: int = -1) -> int:
    """Claim the job and see it through, in one attempt or in more.

    Args:
        status: Of the supervisor before this one, which died and may be followed (`after`).
        keeper: The socket of a keeper that the agent's template forks; -1 for none.
    """
    signals = Signals()
    die_with_parent(signal.SIGUSR1, os.getppid())
    become_subreaper()
    job = JobFolder(folder)
    if job.tasks == (1, 1) and (keeper >= 0 or job.element is not None):
        # This import is late, because a job that starts by job.sh has none.
        from .keeper import Keeper

        job.workers = Keeper(job.folder, keeper)
    if not job.scheduler.has_nodes:
        from ..queue import admission, launch

        launch.resume_after_restart(job.root, job.spec["bridge"])
        try:
            job.held = admission.request_admission(job, signals, waits=status is None)
        except admission.NotNow as not_now:
            log_line(str(not_now))
            return not_now.status
    from . import attempt_loop

    begun = attempt_loop.begin_attempt(job, status, signals)
    if begun is None:
        ended = EXIT_RETURNED
    elif job.element is not None:
        from .items import see_through

        ended = see_through(job, *begun)
    else:
        ended = attempt_loop.JobLoop(job, *begun).see_through()
    if not job.scheduler.has_nodes:
        job.held.release()
        # A machine that goes down starts no job again.
        if ended != EXIT_QUEUED or not signals.asked_to_end():
            launch.revive_spooler(job.root, job.spec["bridge"])
    if os.path.exists(os.path.join(job.home, NOTIFY)):
        # The job holds nothing any more.
        from .notify import tell_end

        tell_end(job.home)
    remove_expired(job)
    return ended


def remove_expired(job: JobFolder) -> None:
    """Remove, once a day, what was due at the look before this one.

    A clock that jumps ahead for a moment makes everything look old. So something is removed only once two looks, in
    order and a day apart, agree on it.
    """
    due = _note_look(os.path.join(job.root, LOOKED))
    if due is None:
        return
    # This import is late: with shutil and subprocess it takes a quarter of the start, for one job a day.
    from . import expire

    expire.tidy(job.root, due, job.spec["keep_days"] * _DAY_S)


def _note_look(stamp: str) -> "Optional[float]":
    """Note a look; when the one before was, None if that is too recent to remove anything."""
    try:
        looked: "Optional[float]" = os.stat(stamp).st_mtime
    except FileNotFoundError:
        looked = None
    ahead = 0.0 if looked is None else looked - time.time()
    if looked is not None and abs(ahead) < _DAY_S:
        return None
    with open(stamp, "w"):
        os.utime(stamp)
    return looked if looked is not None and ahead < 0 else None
