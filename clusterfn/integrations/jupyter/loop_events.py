"""What reaches the loop of a kernel's proxy from other threads and from signal handlers, which may take no lock."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
from typing import Any

from clusterfn.bridge.kernel.carried import READ, SocketWatcher

# While the client has not taken this much of the kernel's data, no more is accepted from the host.
UNDELIVERED_BYTES = 32 * 2**20


class LoopEvents:
    """What other threads and signal handlers send to the loop."""

    def __init__(self, watcher: SocketWatcher) -> None:
        self._events: collections.deque[tuple[str, Any]] = collections.deque()
        self._waking, self._woken = socket.socketpair()
        for end in (self._waking, self._woken):
            end.setblocking(False)
        watcher.watch(self._woken, READ, lambda _: self._swallow())
        self._room = threading.Condition()
        self._bytes = 0
        self._is_closed = False

    def post(self, kind: str, data: Any = None) -> None:
        """Send to the loop, from any thread; wait while there is too much data, which slows the host down in turn."""
        if kind == "data":
            with self._room:
                self._room.wait_for(lambda: self._bytes < UNDELIVERED_BYTES or self._is_closed)
                self._bytes += len(data)
        self.post_at_once(kind, data)

    def post_at_once(self, kind: str, data: Any = None) -> None:
        """Send to the loop, from a signal handler too: takes no lock."""
        self._events.append((kind, data))
        with contextlib.suppress(OSError):
            # A full socket also wakes the loop, and a closed one means that the loop has ended.
            self._waking.send(b"\0")

    def close(self) -> None:
        """Let no thread wait any more: the loop has ended."""
        with self._room:
            self._is_closed = True
            self._room.notify_all()
        self._waking.close()
        self._woken.close()

    def take(self) -> tuple[str, Any] | None:
        """Return the next event."""
        if not self._events:
            return None
        kind, data = self._events.popleft()
        if kind == "data":
            with self._room:
                self._bytes -= len(data)
                self._room.notify_all()
        return kind, data

    def _swallow(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
