"""Decide who may read and change files below a root: its group if that may write to the root, else only its owner.

The user's own umask does not matter. Files that another user could have placed are used only if `owners:` names that
user or the group.
"""

import os
from contextlib import contextmanager

from ..agent.trusted import Trusted, user_name
from ..layout import READY, environment_dir
from .errors import BuildFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Iterator


@contextmanager
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
        "%s is not safe to use: %s" % (path, why), stage="plan",
        hint="if you trust its owner and its group, name them in owners: of this host; else set env_root: to your own"
        " folder",
    )  # fmt: skip
