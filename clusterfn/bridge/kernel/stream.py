"""Numbered frames between the proxy of a kernel and its holder: a connection that breaks loses none and repeats none.

Each side numbers its frames from 1 and keeps them until the other has acknowledged them. A new connection begins with
a HELLO of each side, which says up to which number it has received; the rest is sent again. HELLO and ACK have no
number of their own.

The holder reads the few messages of Jupyter that matter to the job from the bytes as they pass, without libzmq: ZMTP 3
(https://rfc.zeromq.org/spec/23), and https://jupyter-client.readthedocs.io/en/stable/messaging.html.
"""

import collections
import hashlib
import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, List, Tuple

    Facts = Dict[str, Any]

HELLO, ACK, OPEN, DATA, CLOSE, SAY = range(1, 7)
SHELL, IOPUB, STDIN, CONTROL, HEARTBEAT = CHANNELS = (1, 2, 3, 4, 5)
# The only channel of JupyterLab, of a port, and of dask's scheduler.
ONLY = 6
# The names are in the order of the channels' numbers, from 1.
CHANNEL_NAMES = ("shell", "iopub", "stdin", "control", "hb")
# For a larger read, glibc asks the kernel for memory each time (M_MMAP_THRESHOLD): 15 µs for 600 bytes instead of 2.5.
READ_BYTES = 64 * 1024
# A frame begins with its kind, its connection, its number, and how many bytes its body has.
_HEAD = struct.Struct("!BIQI")
_LONGEST = 64 * 2**20

Frame = collections.namedtuple("Frame", "kind connection number body")


class StreamDamaged(Exception):
    """What arrived cannot be a part of the stream."""


def pack(frame: Frame) -> bytes:
    """Return a frame as bytes."""
    return b"".join((_HEAD.pack(frame.kind, frame.connection, frame.number, len(frame.body)), frame.body))


def pack_hello(facts: "Facts") -> bytes:
    """Return the first frame of a connection."""
    return pack(Frame(HELLO, 0, 0, json.dumps(facts).encode()))


def facts_of(frame: Frame) -> "Facts":
    """Return what a HELLO or a SAY says."""
    facts = json.loads(frame.body.decode())
    if not isinstance(facts, dict):
        raise StreamDamaged("a frame of kind %d says %.80r" % (frame.kind, facts))
    return facts


def key_name(key: str) -> str:
    """Return what a kernel's key is known by where the key itself must not be written."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


class FrameSplitter:
    """Splits the bytes of one connection into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> "List[Frame]":
        """Return the frames that are complete now; raise StreamDamaged if these bytes are no frames."""
        self._data += data
        frames = []
        while len(self._data) >= _HEAD.size:
            kind, connection, number, size = _HEAD.unpack_from(self._data)
            if not HELLO <= kind <= SAY or size > _LONGEST:
                raise StreamDamaged("a frame of kind %d with %d bytes" % (kind, size))
            end = _HEAD.size + size
            if len(self._data) < end:
                break
            with memoryview(self._data) as view:
                body = bytes(view[_HEAD.size : end])
            del self._data[:end]
            frames.append(Frame(kind, connection, number, body))
        return frames


class FrameStream:
    """One end of the stream, whatever connection carries it at the moment.

    Attributes:
        received: The number of the last frame that has arrived.
        kept_bytes: How much is kept because the other side has not acknowledged it.
    """

    def __init__(self) -> None:
        self.received = 0
        self.kept_bytes = 0
        self._last = 0
        self._kept: "Deque[Tuple[int, bytes]]" = collections.deque()
        self._unsent: "Deque[bytes]" = collections.deque()
        self._is_connected = False

    def send(self, kind: int, connection: int = 0, body: bytes = b"") -> None:
        """Number a frame, keep it, and queue it for the connection if there is one."""
        self._last += 1
        data = pack(Frame(kind, connection, self._last, body))
        self._kept.append((self._last, data))
        self.kept_bytes += len(data)
        if self._is_connected:
            self._unsent.append(data)

    def say(self, **facts: "Any") -> None:
        """Send facts that concern the kernel as a whole."""
        self.send(SAY, body=json.dumps(facts).encode())

    def take(self, frames: "List[Frame]") -> "List[Frame]":
        """Return the new ones of these frames, and acknowledge all at once; raise StreamDamaged if one is missing."""
        new = []
        for frame in frames:
            if frame.kind == ACK:
                self._forget(frame.number)
            elif frame.kind == HELLO:
                raise StreamDamaged("a second hello")
            elif frame.number == self.received + 1:
                self.received += 1
                new.append(frame)
            elif frame.number > self.received:
                raise StreamDamaged("frame %d came after frame %d" % (frame.number, self.received))
        # An ACK is not acknowledged itself, or the two sides would never stop.
        if any(frame.kind != ACK for frame in frames):
            self._unsent.append(pack(Frame(ACK, 0, self.received, b"")))
        return new

    def disconnect(self) -> None:
        """Forget what was queued: the connection is gone."""
        self._is_connected = False
        self._unsent.clear()

    def resume(self, received: int) -> None:
        """Queue for a new connection what the other side, which has `received` frames, lacks.

        Raises:
            StreamDamaged: The other side has received what was never sent, or lacks what it has acknowledged.
        """
        first = self._kept[0][0] if self._kept else self._last + 1
        if not first - 1 <= received <= self._last:
            raise StreamDamaged("the other side has %d frames, of %d to %d" % (received, first, self._last))
        self._forget(received)
        self._is_connected = True
        self._unsent = collections.deque(data for _, data in self._kept)

    def unsent(self) -> bool:
        """Whether something is queued for the connection."""
        return bool(self._unsent)

    def next_unsent(self) -> bytes:
        """Return the next bytes for the connection, several frames at once."""
        pieces = []
        size = 0
        while self._unsent and size < READ_BYTES:
            pieces.append(self._unsent.popleft())
            size += len(pieces[-1])
        return b"".join(pieces)

    def _forget(self, number: int) -> None:
        while self._kept and self._kept[0][0] <= number:
            self.kept_bytes -= len(self._kept.popleft()[1])


GREETING_BYTES = 64
MORE, LONG, COMMAND = 1, 2, 4
# The messages that matter here are small; a longer part is a binary buffer.
_READ_UP_TO = 1 << 20
DELIMITER = b"<IDS|MSG>"
# Positions of the parts, counted from the delimiter.
_HEADER, _CONTENT = 2, 5


class MessageReader:
    """Splits what one side of a connection sends into messages, and each of them into its parts.

    A part that is longer than what matters here is empty.

    Args:
        on_message: Called with the parts of each message.
    """

    def __init__(self, on_message: "Callable[[List[bytes]], None]") -> None:
        self._on_message = on_message
        self._data = bytearray()
        # Bytes of the greeting that are still to come.
        self._greeting = GREETING_BYTES
        self._parts: "List[bytes]" = []

    def passed(self, data: bytes) -> bytes:
        """Read these bytes, and return them."""
        piece = min(self._greeting, len(data))
        self._greeting -= piece
        self._data += data[piece:]
        while len(self._data) >= 2:
            flags = self._data[0]
            size = self._data[1]
            start = 2
            if flags & LONG:
                start = 9
                size = int.from_bytes(self._data[1:start], "big")
            if len(self._data) < start + size:
                break
            if not flags & COMMAND:
                self._parts.append(bytes(self._data[start : start + size]) if size <= _READ_UP_TO else b"")
                if not flags & MORE:
                    parts, self._parts = self._parts, []
                    self._on_message(parts)
            del self._data[: start + size]
        return data


def request_of(parts: "List[bytes]") -> "Tuple[str, Dict[str, Any]]":
    """Return a message's type and content; ("", {}) for what is none that can be read."""
    try:
        start = parts.index(DELIMITER)
        header, content = (json.loads(parts[start + part].decode()) for part in (_HEADER, _CONTENT))
        return str(header["msg_type"]), content if isinstance(content, dict) else {}
    except (ValueError, KeyError, IndexError, TypeError):
        return "", {}
