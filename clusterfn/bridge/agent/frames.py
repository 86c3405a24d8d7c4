"""Frames, each a header as JSON and a raw body: what comes in from the client (`Inbox`), what goes out (`Outbox`)."""

import collections
import json
import os
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

    Header = Dict[str, Any]
    Frame = Union[bytes, memoryview]

# Frames are made and requests are dispatched for at most this long before the loop serves the others again.
TURN_S = 0.005
# Above this many bytes of unsent answers the agent reads nothing new, or a slow client could fill its memory.
FULL = 1024 * 1024
# Frames are written together up to about so many bytes.
TOGETHER = 16 * 1024
FRAME = struct.Struct("!IQ")
# Linux gives a pipe this many bytes, so a read that returns as many has found the pipe full.
USUAL = 64 * 1024
_LARGE = 512 * 1024
# Linux's numbers for fcntl, which Python names from 3.10 on.
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
UTF8_NAMES = sys.getfilesystemencoding().lower().replace("-", "") == "utf8"


def native(value: "Any") -> "Any":
    """Decode file names in a received value: in the C locale, Python 3.6 makes surrogates of bytes over 127."""
    return value if UTF8_NAMES else recoded(value, native_name)


def native_name(text: str) -> str:
    """Return a name as this locale decodes it: most are the very object that was given, which others share."""
    data = text.encode("utf-8", "surrogateescape")
    return text if len(data) == len(text) else os.fsdecode(data)


def recoded(value: "Any", code: "Callable[[str], str]") -> "Any":
    if isinstance(value, str):
        return code(value)
    if isinstance(value, dict):
        return {recoded(key, code): recoded(item, code) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [recoded(item, code) for item in value]
    return value


def encoded(header: "Header") -> bytes:
    """Encode the header of a frame, and in it the names of files: the reverse of `native`."""
    if not UTF8_NAMES:
        header = recoded(header, lambda text: os.fsencode(text).decode("utf-8", "surrogateescape"))
    return json.dumps(header).encode()


def pack(header: "Header", body: "Frame" = b"") -> bytes:
    """Encode one frame."""
    data = encoded(header)
    return b"".join((FRAME.pack(len(data), len(body)), data, body))


def widen_pipe(fd: int) -> None:
    """Make a pipe of Linux larger, unless it is already; leave anything else as it is.

    The processes at its ends then wait for each other less often. Call it once it carries much: Linux lets a user have
    64 MB of larger pipes, and gives further pipes of that user less than usual.
    """
    if sys.platform != "linux":
        return
    # Most agents never carry enough to need this module.
    import fcntl

    try:
        # Where memory pages have 64 KB, pipes are larger than this from the start and must not be made smaller.
        if fcntl.fcntl(fd, _F_GETPIPE_SZ) < _LARGE:
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _LARGE)
    except OSError:
        # The descriptor is not a pipe, or this user already has as many large pipes as Linux allows.
        return


class Inbox:
    """Splits the incoming stream into frames."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed(self, piece: "Frame") -> "Iterator[Tuple[Header, bytes]]":
        """Yield the frames that this piece completes."""
        self.data += piece
        while len(self.data) >= FRAME.size:
            head, body = FRAME.unpack_from(self.data)
            middle, end = FRAME.size + head, FRAME.size + head + body
            if len(self.data) < end:
                return
            with memoryview(self.data) as view:
                text, content = bytes(view[FRAME.size : middle]), bytes(view[middle:end])
            del self.data[:end]
            yield native(json.loads(text.decode("utf-8", "surrogateescape"))), content


class Sender:
    """What has frames to send when there is room: the base of all request handlers."""

    queued = ended = False

    def is_urgent(self) -> bool:
        """Whether its frames are sent before those of transfers."""
        return False

    def frame(self) -> "Optional[Frame]":
        """Return the next frame to send; None if there is none now, b"" to be asked again."""
        return None

    def safely(self, action: "Callable[[], Any]") -> "Any":
        """Run `action`; an error in it ends this request and nothing else."""
        raise NotImplementedError


class Outbox:
    """Queues what goes to the client: answers, then output of followed files, then a chunk of each transfer in turn."""

    LINES_IN_A_ROW = 8

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.now = memoryview(b"")
        self.answers: "Any" = collections.deque()
        self.size = 0
        self.lines: "Any" = collections.deque()
        self.bodies: "Any" = collections.deque()
        self.row = 0

    def answer(self, header: "Header", body: bytes = b"") -> None:
        frame = pack(header, body)
        self.answers.append(frame)
        self.size += len(frame)

    def offer(self, sender: "Sender") -> None:
        """Send what `sender.frame()` returns, when there is room, until it returns None."""
        if not sender.queued:
            sender.queued = True
            (self.lines if sender.is_urgent() else self.bodies).append(sender)

    def pending(self) -> bool:
        return bool(len(self.now) or self.answers or self.lines or self.bodies)

    def flush(self) -> None:
        """Write what the pipe takes, but only a few frames and for a short time, so that the loop also reads."""
        until = time.monotonic() + TURN_S
        for _ in range(2 * self.LINES_IN_A_ROW):
            if not len(self.now) and not self.next_frame(until):
                return
            try:
                sent = os.write(self.fd, self.now)
            except BlockingIOError:
                return
            if sent < len(self.now):
                widen_pipe(self.fd)
            self.now = self.now[sent:]

    def next_frame(self, until: float) -> bool:
        frames: "List[Frame]" = []
        # Each write wakes three processes on its way, so small frames go together. The last may be a piece of a file,
        # in a buffer that the next piece would overwrite.
        while self.pending() and time.monotonic() < until:
            if self.answers:
                frame: "Frame" = self.answers.popleft()
                self.size -= len(frame)
            else:
                frame = self.from_sender()
            if frame:
                frames.append(frame)
            if frame and (isinstance(frame, memoryview) or sum(map(len, frames)) >= TOGETHER):
                break
        self.now = memoryview(b"".join(frames) if len(frames) > 1 else (frames or [b""])[0])
        return bool(frames)

    def from_sender(self) -> "Frame":
        waiting_bodies = self.row >= self.LINES_IN_A_ROW and self.bodies
        ring = self.bodies if waiting_bodies or not self.lines else self.lines
        self.row = self.row + 1 if ring is self.lines else 0
        sender = ring.popleft()
        sender.queued = False
        frame = sender.safely(sender.frame) if not sender.ended else None
        if frame is not None and not sender.ended:
            self.offer(sender)
        return frame or b""
