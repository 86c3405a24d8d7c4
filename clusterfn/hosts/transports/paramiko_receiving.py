"""Receive through paramiko with fewer copies and wakeups than it would take itself: a large result is limited by them.

paramiko reads each packet of 32 KB in two or three pieces, copies it into an array and out of it again, and wakes the
reader for each. All of it holds the interpreter's lock, which the thread that takes the bytes needs too. Two threads
that pass 200 MB to each other use twice the CPU time of one, so the thread that receives also hands over large pieces.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from paramiko.buffered_pipe import BufferedPipe, PipeTimeout

_READ_AHEAD = 256 * 2**10
_SMALL = 4096
# The reader widens the window after so many delivered bytes. The window is 1 MB or more, so it never closes.
_WIDEN = 384 * 2**10


class QuickSocket:
    """A socket that reads ahead, and acknowledges at once: sshd's own Nagle costs 40 ms a round trip otherwise (Linux).

    Attributes:
        before_wait: Each is called when all that was read has been taken, before the next read, which may wait.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.before_wait: list[Callable[[], None]] = []
        self._sock = sock
        self._quick = getattr(socket, "TCP_QUICKACK", None)
        self._ahead = memoryview(bytearray(_READ_AHEAD))
        self._unread = self._ahead[:0]

    def recv(self, size: int) -> bytes:
        if not self._unread:
            for wake in self.before_wait:
                wake()
            self._unread = self._ahead[: self._sock.recv_into(self._ahead)]
            if self._quick is not None:
                with contextlib.suppress(OSError):
                    self._sock.setsockopt(socket.IPPROTO_TCP, self._quick, 1)
        piece, self._unread = bytes(self._unread[:size]), self._unread[size:]
        return piece

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class ReceivedPieces(BufferedPipe):  # type: ignore[type-arg] # generic only in its stubs
    """Received data of a channel that was not read yet. It replaces all of BufferedPipe but polling."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: collections.deque[bytes] = collections.deque()
        self._size = 0
        self._closed = False
        self._is_late = False
        self._take: Callable[[bytes], bool] | None = None
        # Whether a thread is delivering now: two threads would deliver out of order.
        self._is_giving = False
        # Whether a piece was lost, after which no byte may be read.
        self._is_lost = False
        # Counts the bytes that were delivered since the reader last counted them.
        self._delivered = 0
        # Those of them that the next `read` reports to the channel.
        self._counted = 0
        self._changed = threading.Condition()

    def wake_late(self, sock: QuickSocket) -> None:
        """Wake the reader only when the socket has no more to give: once for several packets."""
        self._is_late = True
        sock.before_wait.append(self._wake)

    def _wake(self) -> None:
        if not self._pieces:
            return
        if self._take is not None:
            self._give()
        else:
            with self._changed:
                self._changed.notify_all()

    def feed(self, data: bytes) -> None:
        """Add the content of a packet; small ones are put together, as each takes memory of its own."""
        if not data or self._is_lost:
            # An empty piece would look like the end of the channel. After a lost piece nothing may be read.
            return
        with self._changed:
            if self._pieces and len(self._pieces[-1]) + len(data) <= _SMALL:
                self._pieces[-1] += data
            else:
                self._pieces.append(data)
            self._size += len(data)
        if not self._is_late:
            self._wake()

    def give_to(self, take: Callable[[bytes], bool]) -> None:
        """Give `take` what is there and what comes, in the thread that feeds, until it returns False or the end.

        The reader calls `has_delivered` until that is False, then `stop_giving`, and reads nothing meanwhile.
        """
        with self._changed:
            if self._closed:
                # After the end, nothing would wake the reader again. It reads what is left by itself.
                return
            self._take = take
        self._give()

    def has_delivered(self) -> bool:
        """Wait until a part of the window was given, or until no more is; return whether the next `read` counts it."""
        with self._changed:
            self._changed.wait_for(lambda: self._delivered >= _WIDEN or (self._take is None and not self._is_giving))
            self._counted, self._delivered = self._delivered, 0
        return self._counted > 0

    def stop_giving(self) -> None:
        """Give no more, and leave nothing to be counted: what comes now is read."""
        with self._changed:
            self._take = None
            self._changed.wait_for(lambda: not self._is_giving)
            self._counted = self._delivered = 0

    def _give(self) -> None:
        """Give all that is there, unless another thread does already. The lock is free during each call of `take`."""
        with self._changed:
            if self._is_giving:
                return
            self._is_giving = True
        while (next_piece := self._next_piece()) is not None:
            take, piece = next_piece
            try:
                if not take(piece):
                    self._take = None
            except BaseException:
                # The piece is lost, so the bytes after it must not be read as if they followed directly.
                with self._changed:
                    self._is_lost = True
                    self._pieces.clear()
                    self._size, self._take, self._is_giving, self._closed = 0, None, False, True
                    self._changed.notify_all()
                raise

    def _next_piece(self) -> tuple[Callable[[bytes], bool], bytes] | None:
        with self._changed:
            if self._take is None or self._delivered >= _WIDEN:
                self._changed.notify_all()
            if self._take is None or not self._pieces:
                self._is_giving = False
                return None
            piece = self._pieces.popleft()
            self._size -= len(piece)
            self._delivered += len(piece)
            return self._take, piece

    def read_ready(self) -> bool:
        """Return whether there is something to read."""
        return bool(self._pieces)

    def read(self, nbytes: int, timeout: float | None = None) -> Any:
        """Wait for bytes, and return as many as there are, up to `nbytes`; none once the channel is closed.

        Raises:
            PipeTimeout: Nothing came in time.
        """
        with self._changed:
            if self._counted:
                counted, self._counted = range(self._counted), 0
                # The channel widens its window by the length of what it gets. A range has a length and takes no memory.
                return counted
            if not self._changed.wait_for(lambda: self._pieces or self._closed, timeout):
                raise PipeTimeout
            taken, size = [], 0
            while self._pieces and size < nbytes:
                taken.append(self._pieces.popleft())
                size += len(taken[-1])
            if size > nbytes:
                rest = len(taken[-1]) - (size - nbytes)
                self._pieces.appendleft(taken[-1][rest:])
                taken[-1], size = taken[-1][:rest], nbytes
            self._size -= size
        return b"".join(taken)

    def close(self) -> None:
        """Let readers have what is left, and then nothing."""
        with self._changed:
            self._closed, self._take = True, None
            self._changed.notify_all()

    def set_event(self, event: threading.Event) -> None:
        """Reject polling: no channel of clusterfn needs it."""
        raise NotImplementedError("a channel with ReceivedPieces cannot be polled")

    def empty(self) -> bytes:
        """Return all that has come, and keep nothing."""
        return self.read(self._size, 0) if self._size else b""

    def __len__(self) -> int:
        return self._size
