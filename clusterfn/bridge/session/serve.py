"""Serve the calls of a session in their order, until it is closed or no call has come for `idle_s`.

A call comes as a whole folder, `calls/<n>`, by one rename. New folders are noticed by inotify, and on network file
systems by looking less and less often.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any

from ..agent.inotify import new_inotify
from ..layout import CALLS, CLOSE
from ..supervisor.watch import Signals
from ..supervisor.worker_process import become_subreaper
from .call import serve_call
from .preload import Preloader


def serve(job: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Serve until there is an end; how many calls it served, and why it ended: "closed" or "idle"."""
    folder = os.path.join(job, CALLS)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    become_subreaper()
    server = CallServer(folder, spec)
    why = server.serve()
    return {"calls": server.served, "why": why, "loaded beforehand": server.loaded}


class CallServer:
    """The calls of one session.

    Attributes:
        served: How many ran.
        loaded: Modules that calls find loaded.
    """

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.served = 0
        self.loaded: list[str] = []
        self._folder = folder
        self._spec = spec
        self._last = 0
        self._preloader = Preloader()
        self._calls = FolderWatch(folder)
        self._signals = Signals([signal.SIGCHLD])

    def serve(self) -> str:
        """Serve call after call; return why it ended."""
        while True:
            # A network file system shows a new folder to those who list.
            if str(self._last + 1) in os.listdir(self._folder):
                self._last += 1
                loaded = serve_call(os.path.join(self._folder, str(self._last)), self._spec, self._signals)
                if loaded is not None:
                    self.served += 1
                    self.loaded += self._preloader.load(loaded)
                self._calls.busy()
            elif os.path.exists(os.path.join(self._folder, CLOSE)):
                return "closed"
            elif self._calls.silent_s >= self._spec["session"]["idle_s"]:
                return "idle"
            else:
                self._calls.wait()


_FIRST_S, _LAST_S = 0.02, 1.0
_SLOWING = 60.0  # after a minute without a call: a look a second


class FolderWatch:
    """Signs of life in a folder, which over a network file system the kernel does not give.

    Args:
        folder: It must exist.
    """

    def __init__(self, folder: str) -> None:
        self._poll = select.poll()
        self._inotify = new_inotify()
        if self._inotify is not None:
            self._inotify.add(folder)
            self._poll.register(self._inotify.fd, select.POLLIN)
        self._since = time.monotonic()

    def busy(self) -> None:
        """Look often again, as something came."""
        self._since = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Return the seconds since something came."""
        return time.monotonic() - self._since

    def wait(self) -> None:
        """Wait until the next look."""
        pause = min(_LAST_S, max(_FIRST_S, self.silent_s / _SLOWING))
        if self._poll.poll(pause * 1000) and self._inotify is not None:
            self._inotify.events()
