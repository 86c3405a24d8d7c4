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


# By root: when the clock of its files was last looked at, and by how much it was ahead.
_known = {}  # type: dict[str, tuple[float, float]]


def ahead_s(root: str) -> float:
    """Return by how many seconds the clock of the files below a root is ahead of this machine's, or was a minute ago.

    It is 0 if both agree, or if that cannot be known.
    """
    now = time.monotonic()
    if root not in _known or now > _known[root][0] + _KNOWN_S:
        measured_s = _measured(root)
        _known[root] = now, measured_s if abs(measured_s) > _SAME_S else 0.0
    return _known[root][1]


def written(root: str, path: str) -> "Optional[float]":
    """Return when a file below a root was written, by the clock of this machine; None without it."""
    clock_ahead_s = ahead_s(root)
    try:
        return os.stat(path).st_mtime - clock_ahead_s
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
