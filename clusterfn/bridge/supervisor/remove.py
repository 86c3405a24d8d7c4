"""Measure and remove jobs that a person names: what `clusterfn jobs` shows as their size, and `clusterfn rm` removes.

A job that waits or runs is never removed, nor one from whose checkpoint such a job resumes.
"""

import contextlib
import json
import os
import sys
import time

from ..layout import JOBS
from ..removal import size_of, try_remove
from .expire import LivingJobs, needed_by
from .job import DamagedFile, JobFolder, describe_damage, job_folders
from .listing import state_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A shared file system may need minutes for jobs with many files.
_MEASURE_S = 10.0


def print_sizes(root: str, ids: "list[str]", limit_s: float = _MEASURE_S) -> int:
    """Print the bytes of each job as one JSON object; leave out those for which there was no time."""
    until = time.monotonic() + limit_s
    sizes = {}
    for job_id in ids:
        if time.monotonic() > until:
            break
        sizes[job_id] = size_of(os.path.join(root, JOBS, job_id))
    sys.stdout.write(json.dumps(sizes) + "\n")
    return 0


def remove_jobs(root: str, ids: "list[str]", dry: bool) -> int:
    """Remove these jobs, and print as one JSON object which went, with their bytes, and why others were kept.

    Args:
        root: Of the jobs.
        ids: With all their digits.
        dry: Remove nothing, and print the same.
    """
    summary: "dict[str, list[dict[str, Any]]]" = {"removed": [], "kept": []}
    folders = {os.path.basename(folder): folder for folder in job_folders(root)}
    living = LivingJobs(root)
    needed = _needed(folders, living)
    for job_id in ids:
        why = _why_kept(job_id, folders, living, needed)
        size = 0 if why else size_of(folders[job_id])
        if not why and not dry and not try_remove(folders[job_id]):
            why = "its files could not be removed"
        summary["kept" if why else "removed"].append(
            {"id": job_id, "why": why} if why else {"id": job_id, "bytes": size}
        )
    sys.stdout.write(json.dumps(summary) + "\n")
    return 0


def _why_kept(job_id: str, folders: "dict[str, str]", living: LivingJobs, needed: "dict[str, str]") -> str:
    if job_id not in folders:
        return "it is not there any more"
    if job_id in needed:
        return needed[job_id]
    try:
        job = JobFolder(folders[job_id])
        return "it is %s" % state_of(job) if living.has(job) else ""
    except (OSError, DamagedFile) as error:
        damage = "its folder is damaged (%s)" % describe_damage(error)
        return "%s; if no process of it runs, remove it by hand: rm -r %s" % (damage, folders[job_id])


def _needed(folders: "dict[str, str]", living: LivingJobs) -> "dict[str, str]":
    """Return the jobs that others need which wait or run, and why."""
    found: "dict[str, str]" = {}
    for folder in folders.values():
        with contextlib.suppress(OSError, DamagedFile):
            job = JobFolder(folder)
            needed = needed_by(job)
            found.update(needed if needed and living.has(job) else ())
    return found
