"""Deliver the warning before the end of a job (`warn_before=`) to its function: a SIGTERM, at most once.

A signal that comes while the call is loaded is kept until the function runs; one that comes after its end, while its
value is written, is dropped. Processes that the function forks do not inherit any of this.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


class EndWarning:
    """The warning of one call; `ending` is `clusterfn.api.in_job`, as the function imports it."""

    def __init__(self, ending: ModuleType) -> None:
        self._ending = ending
        self._runs = self._came = self._delivered = False
        # The masks are those of the thread that forks.
        self._masks = threading.local()

    def prepare(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._forget)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._came = True
        self._deliver()

    def _deliver(self) -> None:
        if self._runs and self._came and not self._delivered:
            self._delivered = True
            self._ending.deliver()

    def _block(self) -> None:
        """Hold SIGTERM back during a fork: a child that is ended at once would take it for a warning, and lose it."""
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _forget(self) -> None:
        # A function may have set its own handler.
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._unblock()

    def around(self, call: Callable[[], Any]) -> Any:
        self._runs = True
        try:
            self._deliver()
            return call()
        finally:
            self._runs = False

    def has_ended(self, error: object) -> bool:
        """Whether this exception says that the function has ended because of the warning."""
        return isinstance(error, self._ending.TimeAlmostUp)


def load_ending() -> ModuleType:
    """Return `clusterfn.api.in_job`, as the environment has it or as it came with the bridge.

    Raises:
        ImportError: The environment has a clusterfn that is older than warnings.
    """
    from clusterfn.api import in_job

    return in_job
