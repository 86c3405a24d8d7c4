"""Who uses an environment: `uses/<id>/<job>` holds the path of the job's folder, and is gone when the job is over.

The supervisor adds and drops; whoever removes an environment asks. A lease whose job has a final outcome, or no folder
any more, counts for nothing. Add first, then look for READY: a removal looks again once it has the environment aside.
"""

import os

from ...layout import uses_dir
from ..supervisor import publish
from ..supervisor.attempt import Attempt
from ..supervisor.job import DAMAGED, Job
from . import group


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


def drop(root: str, env_id: str, job: str) -> None:
    """The job is over."""
    try:
        os.unlink(os.path.join(uses_dir(root, env_id), os.path.basename(job)))
    except FileNotFoundError:
        return


def users(root: str, env_id: str) -> "list[str]":
    """The ids of the jobs that use it now; leases of jobs that are over are dropped."""
    folder = uses_dir(root, env_id)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [name for name in sorted(names) if not name.startswith(".") and _lives(os.path.join(folder, name))]


def last_used(root: str, env_id: str) -> float:
    """When a job last began or ended to use it; 0 if never."""
    try:
        return os.stat(uses_dir(root, env_id)).st_mtime
    except FileNotFoundError:
        return 0.0


def _lives(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            job = os.fsdecode(file.read().strip())
        if _is_over(job):
            os.unlink(path)
            return False
    except FileNotFoundError:
        return False
    return True


def _is_over(folder: str) -> bool:
    try:
        os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # another user's, or its file system is away
        return False
    try:
        job = Job(folder)
        outcomes = [Attempt(job, number).outcome() for number in job.attempts()]
    except DAMAGED:  # it cannot be told: it keeps the environment until its folder is removed
        return False
    return any(outcome is not None and outcome.get("final") for outcome in outcomes)
