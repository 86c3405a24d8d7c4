"""What a runner makes for its next call ahead of need: its process, and the disk space for its outcome.

Both are the same for each call, and take longer than most of what is left to do once the call has come.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..supervisor.limits import OomDetector
from ..supervisor.publish import Reserve
from .spare import SpareProcess

_OOM_VALID_S = 1.0


class Ahead:
    """The process of the next call, disk space for an outcome, and the kernel's out-of-memory counters.

    Args:
        folder: On the file system of the calls.
        fork: Forks a process that waits for a call.
    """

    def __init__(self, folder: str, fork: Callable[[], SpareProcess]) -> None:
        self._folder = folder
        self._fork = fork
        self._spare: SpareProcess | None = None
        self._reserve: Reserve | None = None
        self._oom: OomDetector | None = None
        self._oom_until = 0.0

    def prepare(self) -> None:
        """Make again what the last call has used."""
        self._spare = self._spare or self._fork()
        self.forget_oom()
        self.oom()
        try:
            self.reserve()
        except OSError:  # full: the call tries again, and says so
            return

    def give(self, folder: str, attempt: str, facts: Mapping[str, Any]) -> SpareProcess:
        """Give the call to the process, or to another if something has killed it; as `SpareProcess.give`."""
        while True:
            spare, self._spare = self._spare or self._fork(), None
            if spare.give(folder, attempt, facts):
                return spare
            spare.dismiss()

    def reserve(self) -> Reserve:
        """Return the disk space. It serves each call, until an outcome finds no other.

        Raises:
            OSError: There is none.
        """
        if self._reserve is None or not os.path.exists(self._reserve.path):
            self._reserve = Reserve(self._folder)
        return self._reserve

    def oom(self) -> OomDetector:
        """Return the counters from shortly before a call, because reading them would delay it."""
        if self._oom is None or time.monotonic() > self._oom_until:
            self._oom, self._oom_until = OomDetector(), time.monotonic() + _OOM_VALID_S
        return self._oom

    def forget_oom(self) -> None:
        """Have the counters read again: a kill that one call survived is no reason for the end of the next."""
        self._oom = None

    def renew(self) -> None:
        """Replace the process by one that has loaded what was loaded since."""
        if self._spare is not None:
            self._spare.dismiss()
        self._spare = self._fork()

    def dismiss(self) -> None:
        """End the process, and free the disk space."""
        if self._spare is not None:
            self._spare.dismiss()
        if self._reserve is not None:
            self._reserve.release()
