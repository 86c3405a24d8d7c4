"""The way from a runner to the session's server: orders come, and what is written to the files of a call goes back."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..agent.frames import Inbox, pack
from ..kernel.stream import READ_BYTES

if TYPE_CHECKING:
    import socket

    from ..agent.frames import Header


class ServerLink:
    """The runner's end of it.

    Attributes:
        waiting: Orders that have come.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.waiting: collections.deque[Header] = collections.deque()
        self._sock = sock
        self._inbox = Inbox()
        self._held = b""

    def fileno(self) -> int:
        return self._sock.fileno()

    def read(self) -> bool:
        """Wait for orders; False once the server has closed it."""
        data = self._sock.recv(READ_BYTES)
        self.waiting += [header for header, _ in self._inbox.feed(data)]
        return bool(data)

    def next(self) -> Header | None:
        """Wait for an order; None once the server has closed it."""
        while not self.waiting:
            if not self.read():
                return None
        return self.waiting.popleft()

    def say(self, body: bytes = b"", is_last: bool = True, **header: Any) -> None:
        """Send the server a frame, which wakes it.

        Args:
            is_last: Whether to send at once; False keeps the frame until the next one.
        """
        self._held += pack(header, body)
        if is_last:
            held, self._held = self._held, b""
            self._sock.sendall(held)

    def voice(self, number: int, is_followed: bool = False) -> Callable[..., None]:
        """Return what informs the server of what is written to the files of a call, as `Say`.

        Each frame wakes the server, which takes time from the call.

        Args:
            is_followed: Whether another frame follows right after the call's end.
        """

        def say(what: str, data: bytes, **facts: Any) -> None:
            self.say(data, what != "end" or not is_followed, **facts, n=number, what=what)

        return say
