"""What a runner makes for its next calls ahead of need: their processes, and the disk space for an outcome.

Both are the same for each call, and take longer than most of what is left to do once the call has come.
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..supervisor.limits import OomDetector
from ..supervisor.publish import Reserve
from .call_process import CallProcess
from .prefault import Ranges

_OOM_VALID_S = 1.0
# Each of them uses memory, and forking them takes time from the next call.
_MOST_PROCESSES = 4


class Ahead:
    """The processes of the next calls, disk space for an outcome, and the kernel's out-of-memory counters.

    Attributes:
        waiting: How many calls wait.
        is_hurried: Whether a call waits, or comes as soon as the one before it has ended.
        written: The memory that a call writes to; None if no call has said so yet.

    Args:
        folder: On the file system of the calls.
        fork: Forks a process that waits for a call, and closes these descriptors of others there.
    """

    def __init__(self, folder: str, fork: Callable[[Collection[int]], CallProcess]) -> None:
        self.waiting = 0
        self.is_hurried = False
        self.written: Ranges | None = None
        self._folder = folder
        self._fork = fork
        self._processes: collections.deque[CallProcess] = collections.deque()
        self._reserve: Reserve | None = None
        self._oom: OomDetector | None = None
        self._oom_until = 0.0

    def prepare(self) -> None:
        """Make again what the last calls have used.

        After a fork, this process copies each page that it writes to: several forks at once cost that only once.
        """
        if not self._processes:
            for _ in range(max(1, min(self.waiting, _MOST_PROCESSES))):
                self._add_process()
        self.forget_oom()
        self.oom()
        try:
            self.reserve()
        except OSError:
            # The disk is full. The call tries again, and reports it.
            return

    def _add_process(self) -> None:
        self._processes.append(self._fork([fd for process in self._processes for fd in process.fds()]))

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def give(self, folder: str, attempt: str, facts: Mapping[str, Any]) -> CallProcess:
        """Give the call to the process, or to another if something has killed it; as `CallProcess.give`."""
        while True:
            if not self._processes:
                self._add_process()
            process = self._processes.popleft()
            if process.give(folder, attempt, {**facts, "learns": self.written is None, "rests": not self.is_hurried}):
                return process
            process.dismiss()

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

    def dismiss_processes(self) -> None:
        """End the processes: the next ones will have loaded what was loaded since, at other addresses."""
        self.written = None
        while self._processes:
            self._processes.popleft().dismiss()

    def dismiss(self) -> None:
        self.dismiss_processes()
        if self._reserve is not None:
            self._reserve.release()
