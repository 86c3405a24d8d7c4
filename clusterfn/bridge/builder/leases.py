"""Who uses an environment: `uses/<id>/<job>` holds the path of the job's folder, and is gone when the job is over.

The supervisor adds; whoever removes an environment asks. A lease whose job has a final outcome, or no folder any more,
counts for nothing, and is swept when old environments are collected: looking changes nothing. Add first, then look for
READY: a removal looks again once it has the environment aside.
"""

import contextlib
import os

from ..layout import OUTCOME, uses_dir
from ..supervisor import publish
from ..supervisor.attempt import Attempt
from ..supervisor.job import DAMAGED, Job
from . import group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


def add(root: str, env_id: str, job: str) -> None:
    """A job begins to use an environment.

    Args:
        root: The root of environments.
        env_id: Which.
        job: The job's folder.
    """
    os.makedirs(root, mode=0o700, exist_ok=True)
    with group.opened(root):
        while not _added(uses_dir(root, env_id), job):
            continue


def _added(folder: str, job: str) -> bool:
    """Unless a removal, which ends here, has taken the empty folder meanwhile."""
    os.makedirs(folder, exist_ok=True)
    try:
        publish.replace(os.path.join(folder, os.path.basename(job)), os.fsencode(job + "\n"), sync=False, mode=0o666)
    except FileNotFoundError:
        return False
    return True


def forget(root: str, env_id: str) -> None:
    """Remove the folder of leases, unless a job has come meanwhile: it keeps its own."""
    try:
        os.rmdir(uses_dir(root, env_id))
    except OSError:
        return


def users(root: str, env_id: str) -> "list[str]":
    """The ids of the jobs that use it now."""
    return [os.path.basename(path) for path in _leases(root, env_id) if _ended(path) is None]


def sweep(root: str, env_id: str) -> None:
    """Remove the leases of jobs that are over; what they tell of its use stays."""
    folder, used = uses_dir(root, env_id), last_used(root, env_id)
    for path in _leases(root, env_id):
        if _ended(path) is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    with contextlib.suppress(OSError):  # there is none, or it is another user's
        os.utime(folder, (used, used))


def last_used(root: str, env_id: str) -> float:
    """When a job last began or ended to use it; 0 if never."""
    try:
        begun = os.stat(uses_dir(root, env_id)).st_mtime
    except FileNotFoundError:
        return 0.0
    return max([begun] + [_ended(path) or 0.0 for path in _leases(root, env_id)])


def _leases(root: str, env_id: str) -> "list[str]":
    folder = uses_dir(root, env_id)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in sorted(names) if not name.startswith(".")]


def _ended(lease: str) -> "Optional[float]":
    """When its job ended, 0 if that is not known any more; None while it may go on."""
    try:
        with open(lease, "rb") as file:
            folder = os.fsdecode(file.read().strip())
        os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return 0.0
    except OSError:  # another user's, or its file system is away
        return None
    try:
        job = Job(folder)
        attempts = [Attempt(job, number) for number in job.attempts()]
        final = [each for each in attempts if (each.outcome() or {}).get("final")]
        return os.stat(final[0].path(OUTCOME)).st_mtime if final else None
    except DAMAGED:  # it cannot be told: it keeps the environment until its folder is removed
        return None
