"""Wait until something may have come into a folder: by inotify, or else by looking less and less often."""

from __future__ import annotations

import os
import select
import time

from ..agent.inotify import new_inotify

_FIRST_S, _LAST_S = 0.02, 1.0
_SLOWING = 60.0  # after a minute without a call: a look a second


class Signs:
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
