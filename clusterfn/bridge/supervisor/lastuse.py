"""What an attempt has used so far, written down while it runs: whoever concludes it for a dead supervisor tells that.

One line, rewritten in place and not synced, ever less often until it is every five seconds: it costs next to nothing,
and what it loses with a machine is seconds of it.
"""

import json
import os
import time

from ..layout import HEARTBEAT_S, USAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .attempt import Attempt

_FIRST_S = 1.0


class LastUse:
    """Keeps it for one attempt."""

    def __init__(self, attempt: "Attempt") -> None:
        self._path = attempt.path(USAGE)
        self._began = time.monotonic()
        self._next = self._began + _FIRST_S

    def due(self) -> bool:
        """Whether it is time: after one second, two, four, then every five."""
        return time.monotonic() >= self._next

    def keep(self, usage: "dict[str, Any]") -> None:
        """Write it down; a disk that refuses loses it."""
        now = time.monotonic()
        self._next = now + min(HEARTBEAT_S, max(_FIRST_S, now - self._began))
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError:
            return
        try:
            os.pwrite(file, (json.dumps(usage) + "\n").encode(), 0)  # behind it may stand the rest of a longer line
        except OSError:
            return
        finally:
            os.close(file)


def read(path: str) -> "Optional[dict[str, Any]]":
    """What was kept, marked as the last that is known; None if nothing was."""
    try:
        with open(path, "rb") as file:
            usage = json.loads(file.readline().decode("utf-8", "replace"))
    except (OSError, ValueError):  # there is none, or the machine went down while it was written
        return None
    return dict(usage, last_known=True) if isinstance(usage, dict) else None


def forget(path: str) -> None:
    """The outcome says it now."""
    try:
        os.unlink(path)
    except OSError:  # there was none
        return
