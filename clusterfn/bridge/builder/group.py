"""Who may read and change what is made below a root: its group, if that may write to the root itself; else its owner.

Whatever a user's own umask says. Called by `main` and `leases`.
"""

import os
from contextlib import contextmanager

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
