"""Withdraw many jobs that have not started, in one process: `supervise.py withdraw ROOT HOST`.

A job is concluded as by `conclude`. Any job about which there is more to say is left to a request of its own.
"""

import json
import os
import sys

from ..layout import CANCELLED, JOBS
from . import notify
from .attempt import final_attempt, restore_owner_permissions
from .conclude import conclude_by
from .job import DamagedFile, JobFolder
from .text import native, portable
from .verdict import requested

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def withdraw_jobs(root: str, host: str) -> int:
    """Withdraw the jobs of `{"verdict", "jobs"}` on stdin, and print a line of JSON for each that never starts.

    A job that was withdrawn before is one of those: the client may have missed the first answer, and must remove the
    job from the scheduler's queue. Leave out groups, jobs that have started or ended otherwise, jobs of another
    version's bridge or another host, and any whose folder is damaged or cannot be written.
    """
    asked: "dict[str, Any]" = native(json.loads(sys.stdin.read()))
    bridge = os.path.dirname(os.path.abspath(sys.argv[0]))
    withdrawn: "list[JobFolder]" = []
    for job_id in asked["jobs"]:
        folder = os.path.join(root, JOBS, job_id)
        try:
            restore_owner_permissions(folder)
            job = JobFolder(folder)
            if not _is_for(job, job_id, host, bridge) or _has_ended(job):
                continue
            _, won = conclude_by(job, requested(asked["verdict"]), withdraw=True)
        except (OSError, DamagedFile):
            continue
        if won:
            sys.stdout.write(json.dumps(portable({"id": job.id, "name": job.spec["name"]})) + "\n")
            sys.stdout.flush()
            withdrawn.append(job)
    for job in withdrawn:  # last: a receiver that does not answer takes half a minute for each
        notify.tell_end(job.home)
    return 0


def _is_for(job: JobFolder, job_id: str, host: str, bridge: str) -> bool:
    """Whether this program may conclude it: a bridge that was sent again has another suffix."""
    versions = [os.path.basename(folder).partition("-")[0] for folder in (job.spec["bridge"], bridge)]
    return job.id == job_id and job.spec["host"] == host and len(set(versions)) == 1 and not job.spec.get("group")


def _has_ended(job: JobFolder) -> bool:
    """Whether it has ended otherwise than by such a request."""
    final = final_attempt(job)
    outcome = final.outcome() if final is not None else None
    return outcome is not None and (outcome.get("kind"), outcome.get("by")) != (CANCELLED, "conclude")
