"""Frames on the client's side of the wire (docs/architecture.md). Pure but for the `read` it is given."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

CHUNK = 256 * 1024
FRAME = struct.Struct("!IQ")

Header = dict[str, Any]


def pack(header: Header, body: bytes = b"") -> bytes:
    """One frame."""
    text = json.dumps(header).encode()
    return b"".join((FRAME.pack(len(text), len(body)), text, body))


class FrameReader:
    """Frames from a stream, whatever pieces it comes in.

    Args:
        read: As `Stream.read`.
        data: What was already read.
    """

    def __init__(self, read: Callable[[int], bytes], data: bytes = b"") -> None:
        self._read = read
        self._data = bytearray(data)

    def frame(self) -> tuple[Header, bytes] | None:
        """The next frame; None once the stream has ended."""
        if not self._fill(FRAME.size):
            return None
        head, body = FRAME.unpack_from(self._data)
        middle, end = FRAME.size + head, FRAME.size + head + body
        if not self._fill(end):
            return None
        with memoryview(self._data) as view:
            header, content = json.loads(bytes(view[FRAME.size : middle])), bytes(view[middle:end])
        del self._data[:end]
        return header, content

    def _fill(self, size: int) -> bool:
        while len(self._data) < size:
            piece = self._read(CHUNK)
            if not piece:
                return False
            self._data += piece
        return True
