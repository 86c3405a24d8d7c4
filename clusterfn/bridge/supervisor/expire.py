"""Remove what is no longer needed below a root: jobs that are over or named, and what is sent once for many jobs.

A job that has ended goes when its `keep:` is over, one that was never started after a day. A batch job without an
outcome goes once its scheduler has not listed it for as long as its `keep:`. A job stays while a living one names it in
`resume=`, or takes its value.

The agent dates large arguments, files, modules and bridges whenever a client relies on them, at the latest an hour
before it sends a job. Such a file is unused if it is older than the oldest unfinished job, and was not dated for as
long as jobs are kept. It is renamed first and checked again: a client that came meanwhile finds it, or sends it again.
"""

import contextlib
import glob
import json
import os
import sys
import time

from .. import layout
from ..removal import DAY_S, RELIED_S, STARTS_S, CleanupReport, date_of, is_due, paths_in, size_of, sweep, try_remove
from .attempt import final_attempt
from .job import DamagedFile, JobFolder, describe_damage, job_folders
from .process_tree import script_runs
from .verdict import log_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

# A job has one of these once its script has begun.
_BEGUN = (layout.STARTED, layout.CLAIM, layout.ATTEMPTS)
STORED = (layout.BLOBS, layout.FILES, layout.SOURCES, layout.SHIMS, layout.BRIDGE)


def clean(root: str, keep_s: str, older_s: str, dry: str) -> int:
    """Remove at a person's request, and print what was there and what went, as one JSON object.

    Args:
        keep_s: As for `tidy`.
        older_s: What ended, or was used last, longer ago than so many seconds goes; "" for as long as jobs are kept.
        dry: "dry" if nothing is to be removed.
    """
    limit_s = float(older_s) if older_s else None
    found = tidy(root, time.time(), float(keep_s), older_s=limit_s, dry=dry == "dry", measure=True)
    sys.stdout.write(json.dumps(found.summary) + "\n")
    return 0


def tidy(
    root: str,
    when: float,
    keep_s: float,
    *,
    older_s: "Optional[float]" = None,
    dry: bool = False,
    measure: bool = False,
) -> CleanupReport:
    """Remove what was due at a time.

    Args:
        when: The time, by this host's clock.
        keep_s: For how long things are kept, if no job says more.
        older_s: For how long everything is kept instead.
    """
    # These are removals that were cut short.
    for kind in ("", layout.JOBS, *STORED):
        sweep(os.path.join(root, kind), lambda path: os.path.basename(path).startswith(layout.REMOVED))
    found = CleanupReport(dry, measure)
    living = LivingJobs(root)
    relied_on = [when]
    needed: "dict[str, str]" = {}
    ended: "list[tuple[str, bool]]" = []
    modules: "dict[str, list[str]]" = {}
    for folder in job_folders(root):
        try:
            job = JobFolder(folder)
            kept_s = job.spec["keep_days"] * DAY_S if older_s is None else older_s
            modules[folder] = job.spec.get("sys_path") or []
            lives = living.has(job)
            final = final_attempt(job)
            over = _last_sign(job) if final is None else date_of(final.path(layout.OUTCOME))
            relied_on += [os.stat(job.path(layout.SPEC)).st_mtime] if lives else []
        except (OSError, DamagedFile) as error:
            _tidy_damaged(found, folder, error, when)
            continue
        if lives:
            found.summary["waiting"].append(job.id)
            found.add(layout.JOBS, folder, False)
            needed.update(needed_by(job))
        elif not job.scheduler.has_nodes and not any(_files_named(job, name) for name in _BEGUN):
            kept_s = min(kept_s, STARTS_S) if older_s is None else max(older_s, STARTS_S)
        keep_s = max(keep_s, kept_s) if older_s is None else older_s
        if not lives:
            ended.append((folder, is_due(over, kept_s, when)))
    # It is known only now whose checkpoints and values other jobs will read.
    for folder, goes in ended:
        goes = goes and os.path.basename(folder) not in needed
        found.add(layout.JOBS, folder, goes)
        if goes:
            del modules[folder]
    needed_since = min(sent - RELIED_S for sent in relied_on)
    # Values can be loaded only with these modules.
    kept = {path for paths in modules.values() for path in paths}
    # This bridge is in use.
    kept.add(os.path.dirname(os.path.abspath(sys.argv[0])))
    _tidy_stored(found, root, kept, min(when - keep_s, needed_since), when - keep_s)
    return found


def _tidy_damaged(found: CleanupReport, folder: str, error: Exception, when: float) -> None:
    is_hollow = is_due(_hollow_since(folder), DAY_S, when)
    if not is_hollow:
        log_line("%s is damaged, and is kept: %s" % (folder, describe_damage(error)))
    found.add(layout.JOBS, folder, is_hollow)


def _tidy_stored(found: CleanupReport, root: str, kept: "set[str]", unused_since: float, old_since: float) -> None:
    """Remove what was not used since then; count as recent what is old, but may be needed."""
    for kind in STORED:
        for path in paths_in(os.path.join(root, kind)):
            date = date_of(path)
            is_kept = path in kept
            goes = not is_kept and is_due(date, 0.0, unused_since)
            found.add(kind, path, goes, unused_since)
            found.summary["recent"] += not (goes or is_kept) and is_due(date, 0.0, old_since)


class LivingJobs:
    """Which jobs wait or run."""

    def __init__(self, root: str) -> None:
        machines = os.path.join(glob.escape(root), layout.MACHINES, "*")
        kinds = (layout.QUEUE, layout.INTERRUPTED)
        tickets = [path for kind in kinds for path in glob.glob(os.path.join(machines, kind, "*"))]
        self._queued = {os.path.basename(path).partition(".")[0] for path in tickets}
        self._looks: "dict[tuple[str, str, int], Optional[set[str]]]" = {}

    def has(self, job: JobFolder) -> bool:
        """Whether a client may still need what this job was sent with."""
        if final_attempt(job) is not None:
            return False
        # A job of a scheduler may start at any time.
        has_nodes = job.scheduler.has_nodes
        silent_s = max(DAY_S, job.spec["keep_days"] * DAY_S) if has_nodes else DAY_S
        if job.id in self._queued or time.time() - _last_sign(job) < silent_s:
            return True
        if not has_nodes:
            return any(map(script_runs, _files_named(job, layout.STARTED)))
        if not self._is_listed(job):
            return False
        # The date protects the job from a later look at which the scheduler misses it.
        os.utime(job.home)
        return True

    def _is_listed(self, job: JobFolder) -> bool:
        """Whether one of two answers of the scheduler names it; without both answers every job may be there."""
        clusters = job.spec.get("clusters") or ""
        for count in 1, 2:
            look = (job.spec["scheduler"], clusters, count)
            if look not in self._looks:
                self._looks[look] = job.scheduler.listed_jobs(clusters)
            listed = self._looks[look]
            if listed is None or job.id in listed:
                return True
        return False


def needed_by(job: JobFolder) -> "dict[str, str]":
    """Return the jobs whose values or checkpoint a job needs, and say so of each."""
    needed = dict.fromkeys(job.spec.get("after") or (), "job %s takes its value" % job.id)
    if job.spec.get("resume"):
        needed[job.spec["resume"]] = "job %s resumes from its checkpoint" % job.id
    return needed


def _files_named(job: JobFolder, *names: str) -> "list[str]":
    """Return the files of that name of a job, and of the elements of a group."""
    home = glob.escape(job.home)
    patterns = (os.path.join(home, *names), os.path.join(home, layout.ELEMENTS, "*", *names))
    return [path for pattern in patterns for path in glob.glob(pattern)]


def _last_sign(job: JobFolder) -> float:
    """Return when a job last wrote something."""
    paths = (
        [job.home, job.path(layout.SPEC)] + _files_named(job, layout.STARTED) + _files_named(job, layout.ATTEMPTS, "*")
    )
    paths += _files_named(job, layout.ATTEMPTS, "*", layout.HEARTBEAT) + _files_named(
        job, layout.ATTEMPTS, "*", layout.OUTCOME
    )
    return max(date_of(path) or 0.0 for path in paths)


def _hollow_since(folder: str) -> "Optional[float]":
    """Return when the last file below a folder was removed, as a site does that purges files and leaves folders.

    None if there is a file, or if not all of it can be read.
    """
    dates = []

    def cannot_tell(error: OSError) -> None:
        raise error

    try:
        for path, _, names in os.walk(folder, onerror=cannot_tell):
            if names:
                return None
            dates.append(os.lstat(path).st_mtime)
    except OSError:
        return None
    return max(dates)


def remove_jobs(root: str, dry: str, *ids: str) -> int:
    """Remove jobs that a person names; print as one JSON object which went, with their bytes, and why others were kept.

    A job that waits or runs is never removed, nor one from whose checkpoint such a job resumes.

    Args:
        dry: "dry" to remove nothing, and print the same.
        ids: With all their digits.
    """
    summary: "dict[str, list[dict[str, Any]]]" = {"removed": [], "kept": []}
    folders = {os.path.basename(folder): folder for folder in job_folders(root)}
    living = LivingJobs(root)
    needed: "dict[str, str]" = {}
    for folder in folders.values():
        with contextlib.suppress(OSError, DamagedFile):
            job = JobFolder(folder)
            needs = needed_by(job)
            needed.update(needs if needs and living.has(job) else ())
    for job_id in ids:
        why = _why_kept(job_id, folders, living, needed)
        size = 0 if why else size_of(folders[job_id])
        if not why and dry != "dry" and not try_remove(folders[job_id]):
            why = "its files could not be removed"
        summary["kept" if why else "removed"].append(dict({"why": why} if why else {"bytes": size}, id=job_id))
    sys.stdout.write(json.dumps(summary) + "\n")
    return 0


def _why_kept(job_id: str, folders: "dict[str, str]", living: LivingJobs, needed: "dict[str, str]") -> str:
    # This import is late, because each job tidies up, and only a person asks for the state of one.
    from .listing import state_of

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
