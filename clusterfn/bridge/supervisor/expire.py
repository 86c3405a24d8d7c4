"""Removes jobs that ended longer ago than their host kept them for (`keep:`).

Touches nothing but folders of jobs with a final outcome. Called by `main` when a job is over, once a day for a root.
"""

import os
import shutil
import time

from ...layout import JOBS, OUTCOME, REMOVED
from .attempt import Attempt
from .job import DAMAGED, Job, job_folders
from .log import say

_DAY_S = 86400.0
_STAMP = "expired"


def once_a_day(job: Job) -> None:
    """Remove what was due when somebody looked last, unless that was within a day.

    A clock that jumps ahead for a moment makes every job look old. So a job goes only once two looks, a day apart and
    in order, agree on it.
    """
    stamp = os.path.join(job.root, _STAMP)
    try:
        looked = os.stat(stamp).st_mtime
    except FileNotFoundError:
        looked = None
    ahead = 0.0 if looked is None else looked - time.time()
    if looked is not None and abs(ahead) < _DAY_S:
        return
    with open(stamp, "w"):
        os.utime(stamp)
    if looked is not None and ahead < 0:
        expire(job.root, looked)


def expire(root: str, when: float) -> None:
    """Remove what was due at `when`: each job says itself how long it is kept."""
    for folder in job_folders(root):
        try:
            over = _is_due(folder, when)
        except DAMAGED as error:
            say("%s is damaged, and is kept: %s: %s" % (folder, type(error).__name__, error))
            continue
        if over:
            _remove(folder)
    _finish(os.path.join(root, JOBS))


def _is_due(folder: str, when: float) -> bool:
    """Whether its final outcome was older than the job's own `keep_days` then."""
    job = Job(folder)
    for number in job.attempts():
        attempt = Attempt(job, number)
        outcome = attempt.outcome()
        if outcome is not None and outcome["final"]:
            return bool(when - os.stat(attempt.path(OUTCOME)).st_mtime > job.spec["keep_days"] * _DAY_S)
    return False


def _finish(folder: str) -> None:
    """Remove what somebody was ended while removing."""
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.startswith(REMOVED):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _remove(folder: str) -> None:
    """Aside first: a job that is half removed must not be taken for one."""
    aside = os.path.join(os.path.dirname(folder), REMOVED + os.path.basename(folder))
    try:
        os.rename(folder, aside)
        shutil.rmtree(aside)
    except OSError as error:
        say("%s could not be removed: %s" % (folder, error))
