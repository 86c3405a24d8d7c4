"""Serve the calls of a session in their order, until it is closed or no call has come for `idle_s`.

A call comes as a whole folder, `calls/<n>`, by one rename. New folders are noticed by inotify, and on network file
systems by looking less and less often.
"""

from __future__ import annotations

import os
import select
import time
from typing import Any

from ..agent.inotify import new_inotify
from ..layout import CALLS, CLOSE
from ..supervisor import worker_process
from .call import SessionCall
from .preload import Preloader


def serve(job: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Serve until there is an end; how many calls it served, and why it ended: "closed" or "idle"."""
    folder = os.path.join(job, CALLS)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    worker_process.become_subreaper()
    session = CallServer(folder, spec)
    why = session.until_over()
    return {"calls": session.served, "why": why, "loaded beforehand": session.loaded}


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
        self._warming = Preloader()
        self._signs = FolderWatch(folder)

    def until_over(self) -> str:
        """Serve; why there is an end."""
        while True:
            number = self._next()
            if number is not None:
                self._serve(number)
                self._signs.busy()
            elif os.path.exists(os.path.join(self._folder, CLOSE)):
                return "closed"
            elif self._signs.silent_s >= self._spec["session"]["idle_s"]:
                return "idle"
            else:
                self._signs.wait()

    def _next(self) -> int | None:
        """The call after the last one, if it is there; a network file system hears of it by listing."""
        return self._last + 1 if str(self._last + 1) in os.listdir(self._folder) else None

    def _serve(self, number: int) -> None:
        self._last = number
        call = SessionCall(os.path.join(self._folder, str(number)), self._spec)
        if not call.take():
            call.give_up()
            return
        call.run()
        self.served += 1
        self.loaded += self._warming.load(call.loaded)


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
        """Something came: look often again."""
        self._since = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since something came."""
        return time.monotonic() - self._since

    def wait(self) -> None:
        """Until the next look."""
        pause = min(_LAST_S, max(_FIRST_S, self.silent_s / _SLOWING))
        if self._poll.poll(pause * 1000) and self._inotify is not None:
            self._inotify.events()

    def close(self) -> None:
        """In a forked call, which waits for nothing."""
        if self._inotify is not None:
            os.close(self._inotify.fd)
