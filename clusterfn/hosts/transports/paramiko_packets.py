"""Receive and send through paramiko with fewer copies and wakeups than it would take itself: they limit large values.

paramiko reads each packet of 32 KB in two or three pieces, copies it into an array and out of it again, and wakes the
reader for each. All of it holds the interpreter's lock, which the thread that takes the bytes needs too. Two threads
that pass 200 MB to each other use twice the CPU time of one, so the thread that receives also hands over large pieces.

To send, paramiko copies each byte seven times before it is encrypted, and twice afterwards. Here it is copied once
before that. paramiko also gives the socket each packet by itself, which wakes the host's sshd each time. Here several
go together.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from paramiko import Channel
from paramiko.buffered_pipe import BufferedPipe, PipeTimeout
from paramiko.common import MSG_CHANNEL_DATA
from paramiko.packet import Packetizer

_READ_AHEAD = 256 * 2**10
_SMALL = 4096
# The reader widens the window after so many delivered bytes. The window is 1 MB or more, so it never closes.
_WIDEN = 384 * 2**10

# The most bytes of data in a packet. paramiko would split longer pieces into packets of this size.
MOST = 32 * 2**10 - 64
# Give the socket so many bytes together, because each write wakes the host's sshd.
_AT_ONCE = 256 * 2**10
# Length of the packet, length of its padding, kind of message, channel, length of the data.
_HEAD = struct.Struct(">IBBII")
# AES-GCM does not encrypt the first of these fields, which has 4 bytes (RFC 5647).
_LENGTH = 4
_LEAST_PADDING = 4  # RFC 4253


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

    def close(self) -> None:
        """Close it, and wake the thread that waits for what it receives."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

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


@functools.cache
def encrypts_memory() -> bool:
    """Whether AES-GCM takes a memoryview: cryptography 38 takes only bytes. The key is for this question alone."""
    try:
        AESGCM(bytes(16)).encrypt(bytes(12), memoryview(b""), b"")
    except TypeError:
        return False
    return True


def send_all(channel: Channel, data: bytes | memoryview) -> None:
    """Send all of it on a channel whose connection has a `QuickPacketizer`.

    Raises:
        OSError: The channel is closed.
    """
    rest = memoryview(data)
    while rest:
        # Keep room in the window: a packet that waits for a wider one would wait for an answer to packets not sent yet.
        more = len(rest) > MOST and channel.out_window_size >= 2 * MOST
        # Not `send`, which would make a Message that keeps copies of the data.
        rest = rest[channel._send(rest[:MOST], _DataMessage(channel.remote_chanid, more)) :]  # type: ignore[attr-defined]


class _DataMessage:
    """A message of a channel's data, as far as paramiko uses one to send it; `more`: another one follows at once."""

    def __init__(self, channel: int, more: bool) -> None:
        self.channel, self.more = channel, more
        self.data = memoryview(b"")

    def add_string(self, data: memoryview) -> None:
        self.data = data

    def asbytes(self) -> _DataMessage:
        return self

    def __len__(self) -> int:
        return _HEAD.size - _LENGTH - 1 + len(self.data)

    def __getitem__(self, index: int) -> int:
        assert index == 0, "paramiko looks only at the kind of a message"
        return MSG_CHANNEL_DATA


class _PartlyEncrypted:
    """A packet whose length is not encrypted: paramiko takes the length and the rest as slices."""

    def __init__(self, packet: memoryview) -> None:
        self._packet = packet

    def __getitem__(self, part: slice) -> bytes | memoryview:
        return self._packet[part] if part.start and encrypts_memory() else bytes(self._packet[part])


class QuickPacketizer(Packetizer):
    """Put the data of channels into the same memory for each packet: paramiko builds one at a time, under a lock.

    An encrypted packet may wait for the next ones. Any other message goes after those that wait, and takes them along.
    Through a jump host, none waits: the channel there would take them apart again.
    """

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self._packet = memoryview(bytearray(_HEAD.size + MOST + 2 * 256))
        self._waiting: list[bytes] = []
        self._at_once = _AT_ONCE if isinstance(sock, (socket.socket, QuickSocket)) else 0
        # Whether the packet that was built last may wait for the next one.
        self._more = False
        # The block size in bytes; 0 if the cipher also encrypts the length, or nothing is encrypted.
        self._block = 0

    def set_outbound_cipher(self, block_engine: Any, block_size: int, *args: Any, **kwargs: Any) -> None:
        super().set_outbound_cipher(block_engine, block_size, *args, **kwargs)
        self._block = block_size if kwargs.get("aead") else 0

    def write_all(self, out: bytes) -> None:  # type: ignore[override] # its stubs say Buffer
        self._waiting.append(out)
        if self._more and sum(map(len, self._waiting)) < self._at_once:
            return
        together, self._waiting = self._waiting, []
        # With a view, the rest that a full socket did not take is not
        # copied. The channel of a jump host takes only bytes.
        super().write_all(memoryview(b"".join(together)) if len(together) > 1 else together[0])

    def _build_packet(self, payload: bytes | _DataMessage) -> Any:
        self._more = isinstance(payload, _DataMessage) and payload.more
        if not isinstance(payload, _DataMessage):
            return super()._build_packet(payload)  # type: ignore[misc] # not in its stubs
        size = len(payload.data)
        if not self._block:
            head = _HEAD.pack(0, 0, MSG_CHANNEL_DATA, payload.channel, size)[_LENGTH + 1 :]
            return super()._build_packet(head + payload.data)  # type: ignore[misc]
        padding = _LEAST_PADDING + -(1 + len(payload) + _LEAST_PADDING) % self._block
        _HEAD.pack_into(self._packet, 0, 1 + len(payload) + padding, padding, MSG_CHANNEL_DATA, payload.channel, size)
        end = _HEAD.size + size
        self._packet[_HEAD.size : end] = payload.data
        # RFC 4253 wants random padding, but encrypted zeros look random on the wire, too.
        self._packet[end : end + padding] = bytes(padding)
        return _PartlyEncrypted(self._packet[: end + padding])
