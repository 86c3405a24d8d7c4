"""What a runner makes for its next call ahead of need: its process, and the disk space for its outcome.

Both are the same for each call, and take longer than most of what is left to do once the call has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ..supervisor.limits import OomDetector
from ..supervisor.publish import Reserve
from .spare import SpareProcess

_OOM_VALID_S = 1.0


class RecentOom:
    """The kernel's out-of-memory counters from shortly before a call, because reading them would delay it."""

    def __init__(self) -> None:
        self._look()

    def _look(self) -> None:
        self._detector, self._until = OomDetector(), time.monotonic() + _OOM_VALID_S

    def detector(self) -> OomDetector:
        """Return the last look, or a new one if that is too old."""
        if time.monotonic() > self._until:
            self._look()
        return self._detector


class Ahead:
    """The process of one call, the disk space for its outcome, and the kernel's counters from before it.

    Args:
        folder: On the file system of the calls.
        fork: Forks a process that waits for a call.

    Attributes:
        oom: The counters.
        reserve: The disk space; None where the disk is full.
    """

    def __init__(self, folder: str, fork: Callable[[], SpareProcess]) -> None:
        self._fork = fork
        self.oom = RecentOom()
        self._spare: SpareProcess | None = fork()
        self.reserve: Reserve | None = None
        try:
            self.reserve = Reserve(folder)
        except OSError:  # full: the call tries again, and says so
            return

    def give(self, folder: str, attempt: str, facts: Mapping[str, Any]) -> SpareProcess:
        """Give the call to the process, or to another if something has killed it; as `SpareProcess.give`."""
        while True:
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
        """End the process if it has no call, and free the disk space."""
        if self._spare is not None:
            self._spare.dismiss()
            self._spare = None
        if self.reserve is not None:
            self.reserve.release()
