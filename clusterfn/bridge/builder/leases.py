"""Which jobs use an environment, and who may read and change files below its root.

`uses/<id>/<job>` holds the path of the job's folder. The supervisor adds a lease; removing an environment looks at
them. A lease whose job has a final outcome, or no folder any more, does not count. It is removed when old environments
are collected, not when it is read. Add the lease before you look for READY: a removal looks again after it has renamed
the environment.

The group of a root may read and change what is below it, if it may write to the root; else only the owner may. The
user's own umask does not matter. Files that another user could have placed are used only if `owners:` names that user
or the group.
"""

import contextlib
import os

from ..agent.trusted import Trusted, user_name
from ..layout import OUTCOME, READY, environment_dir, uses_dir
from ..supervisor import publish
from .progress import BuildFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Iterator, Optional


@contextlib.contextmanager
def writing_below(root: str) -> "Iterator[None]":
    """Create a root if it is missing, and set the umask of this process for files below it meanwhile."""
    os.makedirs(root, mode=0o700, exist_ok=True)
    before = os.umask(0o002 if os.stat(root).st_mode & 0o020 else 0o022)
    try:
        yield
    finally:
        os.umask(before)


def refuse_untrusted(root: str, owners: "Iterable[str]", env_id: str = "") -> None:
    """Refuse a root of environments, or an environment in it, that a user other than its `owners` could have filled."""
    trusted = Trusted(owners)
    found = trusted.objection(root)
    if found is not None:
        raise _refused("%s, and environments in %s come by way of it" % (found[1], root), found[0])
    if env_id:
        folder = environment_dir(root, env_id)
        for path in (folder, os.path.join(folder, READY), os.path.join(folder, "bin", "python")):
            check_trusted(trusted, path)


def check_trusted(trusted: Trusted, path: str) -> bool:
    """Return whether a path exists; refuse it if it belongs to an untrusted user."""
    for look in (os.lstat, os.stat):
        try:
            found = look(path)
        except FileNotFoundError:
            return False
        if not trusted.owns(found):
            raise _refused("it belongs to %s" % user_name(found.st_uid), path)
    return True


def _refused(why: str, path: str) -> BuildFailed:
    return BuildFailed(
        "%s is not safe to use: %s" % (path, why),
        stage="plan",
        hint="if you trust its owner and its group, name them in owners: of this host; else set env_root: to your own"
        " folder",
    )


def add_lease(root: str, env_id: str, job: str) -> None:
    """Record that a job, named by its folder, uses an environment."""
    with writing_below(root):
        path = os.path.join(uses_dir(root, env_id), os.path.basename(job))
        while True:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            # A removal that ends now may take the empty folder.
            with contextlib.suppress(FileNotFoundError):
                publish.replace(path, os.fsencode(job + "\n"), sync=False, mode=0o666)
                return


def jobs_using(root: str, env_id: str) -> "list[str]":
    """List the ids of the jobs that use it now."""
    return [os.path.basename(path) for path in _leases(root, env_id) if _ended(path) is None]


def sweep_ended_leases(root: str, env_id: str) -> None:
    """Remove the leases of jobs that have ended; keep the time of last use."""
    used = last_used(root, env_id)
    for path in _leases(root, env_id):
        if _ended(path) is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    # The folder may be missing, or belong to another user.
    with contextlib.suppress(OSError):
        os.utime(uses_dir(root, env_id), (used, used))


def last_used(root: str, env_id: str) -> float:
    """Return when a job last began or ended to use it; 0 if never."""
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
    """Return when the job ended, 0 if that is unknown; None while it may run."""
    try:
        with open(lease, "rb") as file:
            folder = os.fsdecode(file.read().strip())
        os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return 0.0
    except OSError:
        # The folder may belong to another user, or its file system is unavailable.
        return None
    # These imports are late, because only a removal needs them.
    from ..supervisor.attempt import final_attempt
    from ..supervisor.job import DamagedFile, JobFolder

    try:
        final = final_attempt(JobFolder(folder))
        return os.stat(final.path(OUTCOME)).st_mtime if final else None
    except (OSError, DamagedFile):
        # The outcome is unknown, so the job keeps the environment until its folder is removed.
        return None
