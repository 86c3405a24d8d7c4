"""Removes jobs that ended longer ago than their host keeps them (`keep:`).

Touches nothing but folders of jobs with a final outcome. Called by `main` when a job is over, once a day for a root.
"""

import os
import shutil
import time

from ...layout import JOBS, OUTCOME
from .attempt import Attempt
from .job import Job
from .log import say

_DAY_S = 86400.0
_STAMP = "expired"


def once_a_day(job: Job) -> None:
    """Remove what is due, unless somebody looked within a day."""
    stamp = os.path.join(job.root, _STAMP)
    try:
        if time.time() - os.stat(stamp).st_mtime < _DAY_S:
            return
    except FileNotFoundError:
        pass
    with open(stamp, "w"):
        os.utime(stamp)
    expire(job.root, job.spec["keep_days"])


def expire(root: str, days: float) -> None:
    """Remove what ended more than `days` ago, by this host's own clock."""
    folder = os.path.join(root, JOBS)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        if _ended_s_ago(path) > days * _DAY_S:
            _remove(path)


def _ended_s_ago(folder: str) -> float:
    """Seconds since the final outcome was written; 0 while there is none."""
    try:
        job = Job(folder)
    except (OSError, ValueError):
        return 0.0
    for number in job.attempts():
        attempt = Attempt(job, number)
        outcome = attempt.outcome()
        if outcome is not None and outcome["final"]:
            return time.time() - os.stat(attempt.path(OUTCOME)).st_mtime
    return 0.0


def _remove(folder: str) -> None:
    """Aside first: a job that is half removed must not be taken for one."""
    aside = os.path.join(os.path.dirname(folder), ".expired-" + os.path.basename(folder))
    try:
        os.rename(folder, aside)
        shutil.rmtree(aside)
    except OSError as error:
        say("%s could not be removed: %s" % (folder, error))
