"""What goes to the client, and in which order."""

import collections
import os

from .frames import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .frames import Header
    from .request import Request

FULL = 1024 * 1024  # bytes of unsent answers above which nothing new is read


class Outbox:
    """What goes to the client: answers, then new output of followed files, then a chunk of each transfer a turn."""

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

    def offer(self, sender: "Request") -> None:
        """`sender.frame()` is asked, when there is room, until it has nothing more."""
        if not sender.queued:
            sender.queued = True
            (self.lines if sender.hot() else self.bodies).append(sender)

    def pending(self) -> bool:
        return bool(len(self.now) or self.answers or self.lines or self.bodies)

    def flush(self) -> None:
        """Write what the pipe takes, a few frames at most, so that reading has its turn."""
        for _ in range(2 * self.LINES_IN_A_ROW):
            if not len(self.now) and not self.next_frame():
                return
            try:
                self.now = self.now[os.write(self.fd, self.now) :]
            except BlockingIOError:
                return

    def next_frame(self) -> bool:
        while self.pending():
            frame = self.from_answers() if self.answers else self.from_sender()
            if frame:
                self.now = memoryview(frame)
                return True
        return False

    def from_answers(self) -> bytes:
        frame: "bytes" = self.answers.popleft()
        self.size -= len(frame)
        return frame

    def from_sender(self) -> bytes:
        waiting_bodies = self.row >= self.LINES_IN_A_ROW and self.bodies
        ring = self.bodies if waiting_bodies or not self.lines else self.lines
        self.row = self.row + 1 if ring is self.lines else 0
        sender = ring.popleft()
        sender.queued = False
        frame = sender.safely(sender.frame) if not sender.ended else None
        if frame is not None and not sender.ended:
            self.offer(sender)
        return frame or b""
