"""Remove what is no longer needed below a root: jobs that are over, and what is sent once for many jobs.

A job that has ended goes when its `keep:` is over, one that was never started after a day. A batch job without an
outcome goes once its scheduler has not listed it for as long as its `keep:`. A job stays while a living one names it in
`resume=`, or takes its value.

The agent dates large arguments, files, modules and bridges whenever a client relies on them, at the latest an hour
before it sends a job. Such a file is unused if it is older than the oldest unfinished job, and was not dated for as
long as jobs are kept. It is renamed first and checked again: a client that came meanwhile finds it, or sends it again.
"""

import glob
import json
import os
import subprocess
import sys
import time

from ..layout import (
    ATTEMPTS,
    BLOBS,
    BRIDGE,
    BUILD,
    CLAIM,
    ELEMENTS,
    FILES,
    HEARTBEAT,
    INTERRUPTED,
    JOBS,
    MACHINES,
    OUTCOME,
    QUEUE,
    REMOVED,
    SHIMS,
    SOURCES,
    SPEC,
    STARTED,
)
from . import process_tree
from .attempt import Attempt
from .copy_root import remove
from .job import DAMAGED, JobFolder, job_folders
from .verdict import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Optional

STORED = (BLOBS, FILES, SOURCES, SHIMS, BRIDGE)

_HOUR_S, _DAY_S = 3600.0, 86400.0
_RELIED_S = 2 * _HOUR_S  # a client asks the host again after an hour
_STARTS_S = _DAY_S  # a client starts what it has sent, unless it was ended in between
_ASIDE = ".unused-"


def clean_node(job: JobFolder, node_root: str) -> None:
    """Remove copies of environments that no job has used on this node for as long as this one is kept."""
    builder = os.path.join(job.spec["bridge"], BUILD)
    argv = [sys.executable, "-I", "-S", builder, "gc", node_root, str(job.spec["keep_days"]), "0"]
    subprocess.call(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def clean(root: str, keep_s: str, older_s: str, dry: str) -> int:
    """Remove at a person's request, and print what was there and what went, as one JSON object.

    Args:
        root: Of the jobs.
        keep_s: As for `tidy`.
        older_s: What ended, or was used last, longer ago than so many seconds goes; "" for as long as jobs are kept.
        dry: "dry" if nothing is to be removed.
    """
    limit_s = float(older_s) if older_s else None
    found = tidy(root, time.time(), float(keep_s), older_s=limit_s, dry=dry == "dry", measure=True)
    sys.stdout.write(json.dumps(found.told) + "\n")
    return 0


class CleanupReport:
    """What there is, and what of it goes.

    Attributes:
        told: For each kind `count` and `bytes` of all, and `gone` and `freed` of what is removed. `waiting` has the ids
            of the jobs that wait or run. `recent` counts things that stay only because a client may still rely on them.
    """

    def __init__(self, dry: bool, measure: bool) -> None:
        self.told: "dict[str, Any]" = {"kinds": {}, "waiting": [], "recent": 0}
        self.dry = dry
        self._measure = measure

    def add(self, kind: str, path: str, goes: bool, date: "Optional[float]" = None) -> None:
        """Count one, and remove it if it goes; `date`: by which it was judged."""
        told = self.told["kinds"].setdefault(kind, {"count": 0, "bytes": 0, "gone": 0, "freed": 0})
        size = size_of(path) if self._measure else 0
        told["count"] += 1
        told["bytes"] += size
        if goes and (self.dry or remove_aside(path, kind, date)):
            told["gone"] += 1
            told["freed"] += size


def tidy(
    root: str, when: float, keep_s: float, *, older_s: "Optional[float]" = None, longest_s: "Optional[float]" = None,
    dry: bool = False, measure: bool = False,
) -> CleanupReport:  # fmt: skip
    """Remove what was due at a time.

    Args:
        root: Of the jobs.
        when: The time, by this host's clock.
        keep_s: For how long things are kept, if no job says more.
        older_s: For how long everything is kept instead.
        longest_s: Only jobs that are kept for less.
        dry: Remove nothing.
        measure: Measure everything.
    """
    found, living = CleanupReport(dry, measure), LivingJobs(root)
    relied_on = [when]
    needed: "set[Optional[str]]" = set()
    ended, modules = [], {}  # type: list[tuple[str, bool]], dict[str, list[str]]
    for folder in job_folders(root):
        try:
            job = JobFolder(folder)
            kept_s = job.spec["keep_days"] * _DAY_S if older_s is None else older_s
            modules[folder] = job.spec.get("sys_path") or []
            lives, final = living.has(job), final_outcome(job)
            over = _last_sign(job) if final is None else _date(final)
            relied_on += [os.stat(job.path(SPEC)).st_mtime] if lives else []
        except DAMAGED as error:
            hollow_since = _hollow_since(folder)
            if hollow_since is not None and longest_s is None and when - hollow_since > _DAY_S:
                found.add(JOBS, folder, True)
                continue
            say("%s is damaged, and is kept: %s: %s" % (folder, type(error).__name__, error))
            found.add(JOBS, folder, False)
            continue
        if lives:
            found.told["waiting"].append(job.id)
            found.add(JOBS, folder, False)
            needed.add(job.spec.get("resume"))
            needed.update(job.spec.get("after") or ())
        elif not job.scheduler.has_nodes and not any(_each(job, name) for name in (STARTED, CLAIM, ATTEMPTS)):
            kept_s = min(kept_s, _STARTS_S) if older_s is None else max(older_s, _STARTS_S)
        keep_s = max(keep_s, kept_s) if older_s is None else older_s
        short = longest_s is None or kept_s < longest_s
        if not lives:
            ended.append((folder, short and over is not None and when - over > kept_s))
    for folder, goes in ended:  # only now is it known whose checkpoints and values others will read
        goes = goes and os.path.basename(folder) not in needed
        found.add(JOBS, folder, goes)
        if goes:
            del modules[folder]
    if longest_s is None or keep_s < longest_s:
        needed_since = min(sent - _RELIED_S for sent in relied_on)
        kept = {path for paths in modules.values() for path in paths}  # with which values can be loaded
        _stored(root, min(when - keep_s, needed_since), when - keep_s, found, kept)
    _finish(root)
    return found


def _stored(root: str, unused_since: float, due: float, found: CleanupReport, kept: "set[str]") -> None:
    """Remove what was not used since a time; what was used since, but before it was due, is counted as recent."""
    own = os.path.dirname(os.path.abspath(sys.argv[0]))
    for kind in STORED:
        for path in _below(os.path.join(root, kind)):
            date = _date(path)
            if date is not None:
                goes = date < unused_since and path != own and path not in kept
                found.add(kind, path, goes, unused_since)
                found.told["recent"] += unused_since <= date < due and path != own


class LivingJobs:
    """Which jobs wait or run."""

    def __init__(self, root: str) -> None:
        folders = [os.path.join(glob.escape(root), MACHINES, "*", name, "*") for name in (QUEUE, INTERRUPTED)]
        tickets = [path for folder in folders for path in glob.glob(folder)]
        self._queued = {os.path.basename(path).partition(".")[0] for path in tickets}
        self._looks: "dict[tuple[str, str, int], Optional[set[str]]]" = {}

    def has(self, job: JobFolder) -> bool:
        """Whether a client may still need what this job was sent with."""
        if final_outcome(job) is not None:
            return False
        has_nodes = job.scheduler.has_nodes  # then it may start at any time
        silent_s = max(_DAY_S, job.spec["keep_days"] * _DAY_S) if has_nodes else _DAY_S
        if job.id in self._queued or time.time() - _last_sign(job) < silent_s:
            return True
        if not has_nodes:
            return any(map(runs_still, started_files(job)))
        if not self._is_listed(job):
            return False
        os.utime(job.home)  # a sign of it: one later look that misses it cannot remove it
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


def started_files(job: JobFolder) -> "list[str]":
    """Return the file `started` of a job, and of each element of a group."""
    return _each(job, STARTED)


def runs_still(started: str) -> bool:
    """Whether the job.sh that has written the file `started` still runs on this machine."""
    try:
        with open(started, encoding="utf-8", errors="replace") as file:
            boot, _, stat = file.read().partition(" ")
        pid, start = int(stat.partition(" ")[0]), stat.rpartition(")")[2].split()[19]
        lives = boot == process_tree.boot_id() and process_tree.is_alive(pid)
        return lives and process_tree.start_time(pid) == start
    except (OSError, ValueError, IndexError):
        return False


def _each(job: JobFolder, *names: str) -> "list[str]":
    """Return the files of that name of a job, and of the elements of a group."""
    home = glob.escape(job.home)
    patterns = (os.path.join(home, *names), os.path.join(home, ELEMENTS, "*", *names))
    return [path for pattern in patterns for path in glob.glob(pattern)]


def _last_sign(job: JobFolder) -> float:
    """Return when a job last wrote something."""
    paths = [job.home, job.path(SPEC)] + _each(job, STARTED) + _each(job, ATTEMPTS, "*")
    paths += _each(job, ATTEMPTS, "*", HEARTBEAT) + _each(job, ATTEMPTS, "*", OUTCOME)
    return max(_date(path) or 0.0 for path in paths)


def final_outcome(job: JobFolder) -> "Optional[str]":
    """Return the path of its final outcome."""
    for number in job.attempts():
        attempt = Attempt(job, number)
        outcome = attempt.outcome()
        if outcome is not None and outcome["final"]:
            return attempt.path(OUTCOME)
    return None


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


def _below(folder: str) -> "Iterator[str]":
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if not name.startswith(_ASIDE):
            yield os.path.join(folder, name)


def _date(path: str) -> "Optional[float]":
    try:
        return os.lstat(path).st_mtime
    except OSError:  # it went meanwhile
        return None


def size_of(path: str) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if not os.path.isdir(path) or os.path.islink(path):
        return _bytes(path)
    return sum(_bytes(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


def _bytes(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:  # it went meanwhile
        return 0


def remove_aside(path: str, kind: str, unused_since: "Optional[float]") -> bool:
    """Move it aside, and remove it there: what is half removed must not be taken for the whole.

    Returns:
        False if it is needed after all, or could not be removed.
    """
    aside = os.path.join(os.path.dirname(path), (REMOVED if kind == JOBS else _ASIDE) + os.path.basename(path))
    try:
        os.rename(path, aside)
        needed = unused_since is not None and os.lstat(aside).st_mtime >= unused_since  # a client has come between
        if needed and not os.path.lexists(path):
            os.rename(aside, path)
            return False
        remove(aside)
    except OSError as error:
        say("%s could not be removed: %s" % (path, error))
        return False
    return True


def _finish(root: str) -> None:
    """Finish a removal that was interrupted."""
    for kind in (JOBS, *STORED):
        folder = os.path.join(root, kind)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith((REMOVED, _ASIDE)):
                try:
                    remove(os.path.join(folder, name))
                except OSError:  # another is at it
                    continue
