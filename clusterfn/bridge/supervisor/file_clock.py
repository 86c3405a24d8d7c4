"""Times by the clock of this machine: that of a file server may be another one, and that of the node of a job too.

Who lists jobs has times of three machines before it: its own, those of files, and those that a node has written. A file
that is made now shows how far the server's clock is from this one; the time of a file shows that of who wrote it.
"""

import contextlib
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_SAME_S = 1.0
_KNOWN_S = 60.0


class FileClock:
    """The clock by which files below a root get their times.

    Attributes:
        ahead_s: By how many seconds it is ahead of this machine's; 0 if both agree, or that cannot be known.
    """

    def __init__(self, root: str) -> None:
        self.looked = time.monotonic()
        ahead_s = _measured(root)
        self.ahead_s = ahead_s if abs(ahead_s) > _SAME_S else 0.0

    def written(self, path: str) -> "Optional[float]":
        """Return when a file was written, by the clock of this machine; None without it."""
        try:
            return os.stat(path).st_mtime - self.ahead_s
        except OSError:
            return None


def _measured(root: str) -> float:
    path = os.path.join(root, ".clock-%s" % os.urandom(8).hex())
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        # The folder takes no file now.
        return 0.0
    try:
        return os.fstat(fd).st_mtime - time.time()
    finally:
        os.close(fd)
        # An error here would hide why nothing was measured.
        with contextlib.suppress(OSError):
            os.unlink(path)


_known = {}  # type: dict[str, FileClock]


def file_clock(root: str) -> FileClock:
    """Return the clock of the files below a root, as it was at most a minute ago."""
    known = _known.get(root)
    if known is None or time.monotonic() > known.looked + _KNOWN_S:
        known = _known[root] = FileClock(root)
    return known
