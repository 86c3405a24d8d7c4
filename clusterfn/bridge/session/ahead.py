"""What a runner makes for its next call before that comes: its process, the room for its outcome, and what it watches.

All of it is the same for each call, and takes longer than most of what is left to do then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..supervisor.limits import OomDetector
from ..supervisor.publish import Reserve
from .spare import SpareProcess


class Ahead:
    """It, for one call.

    Args:
        folder: On the file system of the calls.
        fork: Forks a process that waits for a call.

    Attributes:
        reserve: The room for its outcome; None where the disk is full.
        oom: What the kernel's out-of-memory killer had done before the call.
    """

    def __init__(self, folder: str, fork: Callable[[], SpareProcess]) -> None:
        self._fork = fork
        self._spare: SpareProcess | None = fork()
        self.oom = OomDetector()
        self.reserve: Reserve | None = None
        try:
            self.reserve = Reserve(folder)
        except OSError:  # full: the call tries again, and says so
            return

    def give(self, folder: str, attempt: str, facts: Mapping[str, Any]) -> SpareProcess:
        """Give the call to the process, or to another if something has killed it; as `SpareProcess.give`."""
        while True:
            self.oom = OomDetector()  # what was killed while it waited is not this call
            spare, self._spare = self._spare or self._fork(), None
            if spare.give(folder, attempt, facts):
                return spare
            spare.dismiss()

    def renew(self) -> None:
        """Replace the process by one that has loaded what was loaded since."""
        if self._spare is not None:
            self._spare.dismiss()
        self._spare = self._fork()

    def dismiss(self) -> None:
        """End the process if it has no call, and free the room."""
        if self._spare is not None:
            self._spare.dismiss()
            self._spare = None
        if self.reserve is not None:
            self.reserve.release()
