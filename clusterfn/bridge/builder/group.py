"""Who may read and change what is made below a root: its group, if that may write to the root itself; else its owner.

Whatever a user's own umask says. A folder on a node's own disk is its owner's alone. Called by `main`, `leases` and the
supervisor's `built`.
"""

import os
import stat
from contextlib import contextmanager

from .failure import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator


def umask(root: str) -> int:
    """The umask for what lies below a root."""
    return 0o002 if os.stat(root).st_mode & 0o020 else 0o022


@contextmanager
def opened(root: str) -> "Iterator[None]":
    """This process has that umask meanwhile."""
    before = os.umask(umask(root))
    try:
        yield
    finally:
        os.umask(before)


def own(folder: str) -> None:
    """Make a node's folder, or refuse one that somebody else may have filled: it may lie in /tmp."""
    try:
        os.makedirs(folder, mode=0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise Failed(
                "%s belongs to somebody else, or others may write to it" % folder, stage="plan",
                hint="have it removed on that node, or name another folder of the nodes (environment_at:)",
            ) from None  # fmt: skip
