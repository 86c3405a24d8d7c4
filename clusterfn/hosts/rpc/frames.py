"""Frames on the client's side of the wire (docs/reference/protocol.md). Pure but for the `read` it is given."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterfn.errors import HostError

if TYPE_CHECKING:
    from clusterfn.hosts.transports import Stream

CHUNK = 256 * 1024
LONGEST = 64 * 2**20  # of a body: what announces more is no frame
LONGEST_HEADER = 8 * 2**20  # which takes up to thirty times as much memory once it is read
SHOWN = 64
FRAME = struct.Struct("!IQ")
HELLO_ID = 1  # of the first request to an agent

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
        """The next frame; None once the stream has ended.

        Raises:
            HostError: What comes is no frame; nothing after it can be read either.
        """
        if not self._fill(FRAME.size):
            return None
        head, body = FRAME.unpack_from(self._data)
        middle, end = FRAME.size + head, FRAME.size + head + body
        if head > LONGEST_HEADER or body > LONGEST:
            raise no_frame(f"it would have {end} bytes", self._data)
        if not self._fill(end):
            return None
        with memoryview(self._data) as view:
            text, content = bytes(view[FRAME.size : middle]), bytes(view[middle:end])
        del self._data[:end]
        return _header(text), content

    def _fill(self, size: int) -> bool:
        while len(self._data) < size:
            piece = self._read(CHUNK)
            if not piece:
                return False
            self._data += piece
        return True


def _header(text: bytes) -> Header:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise no_frame(f"its header is no JSON: {error}", text) from error
    if not isinstance(header, dict) or not isinstance(header.get("id"), int):
        raise no_frame("it names no request", text)
    failure = header.get("error")
    is_error = isinstance(failure, dict) and all(isinstance(failure.get(name), str) for name in ("kind", "message"))
    if header.get("end") and header.get("ok") is not True and not is_error:
        raise no_frame("it ends well or with an error, and this does neither", text)
    return header


def no_frame(why: str, seen: bytes | bytearray) -> HostError:
    """The error for what is no frame, with its first bytes."""
    return HostError(
        f"The host sent what is no frame: {why}",
        evidence=[repr(bytes(seen[:SHOWN]))],
        hint="see whether something on the host writes into the connection, such as a program that an rc file started",
        retryable=True,
    )


@dataclass
class AgentStream:
    """A stream whose agent has said hello.

    Attributes:
        noise: The beginning of what the login shell printed before.
    """

    stream: Stream
    reader: FrameReader
    hello: Header
    noise: str = ""
