"""Send through paramiko with fewer copies and system calls than it would make itself: they limit a large argument.

paramiko copies each byte seven times before it is encrypted, and twice afterwards. Here it is copied once before that.
paramiko also gives the socket each packet of 32 KB by itself, which wakes the host's sshd each time. Here several go
together.
"""

from __future__ import annotations

import functools
import socket
import struct
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from paramiko import Channel
from paramiko.common import MSG_CHANNEL_DATA
from paramiko.packet import Packetizer

from clusterfn.hosts.transports.paramiko_receiving import QuickSocket

# The most bytes of data in a packet. paramiko would split longer pieces into packets of this size.
MOST = 32 * 2**10 - 64
# Give the socket so many bytes together, because each write wakes the host's sshd.
_AT_ONCE = 256 * 2**10
# Length of the packet, length of its padding, kind of message, channel, length of the data.
_HEAD = struct.Struct(">IBBII")
# AES-GCM does not encrypt the first of these fields, which has 4 bytes (RFC 5647).
_LENGTH = 4
_LEAST_PADDING = 4  # RFC 4253


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
