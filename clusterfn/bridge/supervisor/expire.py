"""Removes jobs that ended longer ago than their host keeps them (`keep:`).

Touches nothing but folders of jobs with a final outcome. Called by `main` when a job is over, once a day for a root.
"""

import os
import shutil
import time

from ...layout import JOBS, OUTCOME
from .attempt import Attempt
from .job import DAMAGED, Job, job_folders
from .log import say

_DAY_S = 86400.0
_STAMP = "expired"
_ASIDE = ".expired-"


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
    for folder in job_folders(root):
        try:
            over = _ended_s_ago(folder) > days * _DAY_S
        except DAMAGED as error:
            say("%s is damaged, and is kept: %s: %s" % (folder, type(error).__name__, error))
            continue
        if over:
            _remove(folder)
    _finish(os.path.join(root, JOBS))


def _ended_s_ago(folder: str) -> float:
    """Seconds since the final outcome was written; 0 while there is none."""
    job = Job(folder)
    for number in job.attempts():
        attempt = Attempt(job, number)
        outcome = attempt.outcome()
        if outcome is not None and outcome["final"]:
            return time.time() - os.stat(attempt.path(OUTCOME)).st_mtime
    return 0.0


def _finish(folder: str) -> None:
    """Remove what somebody was ended while removing."""
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.startswith(_ASIDE):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _remove(folder: str) -> None:
    """Aside first: a job that is half removed must not be taken for one."""
    aside = os.path.join(os.path.dirname(folder), _ASIDE + os.path.basename(folder))
    try:
        os.rename(folder, aside)
        shutil.rmtree(aside)
    except OSError as error:
        say("%s could not be removed: %s" % (folder, error))
