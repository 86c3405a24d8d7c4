"""The stream to a host as it is now: one after another, and at last none."""

from __future__ import annotations

import logging
import threading
import time

from clusterfn.errors import ClusterfnError
from clusterfn.hosts.rpc.boot import Opened
from clusterfn.hosts.rpc.keepalive import Pulse

_log = logging.getLogger("clusterfn")


class Line:
    """What the threads of one link share; it is read and changed under `changed`, and who waits there is woken.

    Attributes:
        opened: The stream; the last one while there is none.
        connected: Whether there is one.
        over: Why there will be none any more; None as long as there may be.
        pulse: Whether the other end lives.
    """

    def __init__(self, host: str, opened: Opened) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.opened = opened
        self.connected = True
        self.over: ClusterfnError | None = None
        self.pulse = Pulse(time.monotonic())
        self._host = host

    def renew(self, opened: Opened) -> bool:
        """Take this stream in place of the one that was lost; False if none is wanted any more."""
        self.opened = opened
        self.connected = self.over is None
        self.pulse.hear(time.monotonic())
        self.changed.notify_all()
        return self.connected

    def lose(self, opened: Opened) -> None:
        """This stream is of no use any more."""
        with self.changed:
            if opened is self.opened:
                self.connected = False
        self.hang_up(opened)

    def hang_up(self, opened: Opened) -> None:
        """End a stream, which may wait for as long as that takes."""
        try:
            opened.stream.close()
        except Exception:  # noqa: BLE001 - whatever a useless stream says, who waits for an answer must go on
            _log.debug("the stream to %s could not be closed", self._host, exc_info=True)
