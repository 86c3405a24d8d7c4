"""Looks at all links of a process every few seconds, in one thread."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Protocol

PERIOD_S = 3.0


class Watched(Protocol):
    """What is looked at."""

    def check(self, now: float) -> None:
        """Look; `now` is time.monotonic()."""


class _Watchdog:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child: the parent's links are none of ours, and its lock may be held for ever."""
        self._links: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._pid = 0

    def add(self, link: Watched) -> None:
        with self._lock:
            self._links.add(link)
            if self._pid != os.getpid():
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="clusterfn-watchdog", daemon=True).start()

    def _run(self) -> None:
        sleep = threading.Event()
        while True:
            sleep.wait(PERIOD_S)
            with self._lock:
                links = list(self._links)
            for link in links:
                link.check(time.monotonic())


_watchdog = _Watchdog()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watchdog.forget)


def add(link: Watched) -> None:
    """Look at this link as long as it lives."""
    _watchdog.add(link)
