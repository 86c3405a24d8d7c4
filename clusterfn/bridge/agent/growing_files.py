"""Send files to the client as they grow, or once they exist; also report silent ones."""

import os
import time

from .compression import Compressor
from .downloads import piece_of
from .files import exists, read_at, size_of
from .frames import pack
from .handler import RequestHandler, expand, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .frames import Frame, Header


EARLY = 1024 * 1024  # bytes of a file that is being written, from which on it is sent ahead
EARLY_PIECE = 64 * 1024


class FollowHandler(RequestHandler):
    """Stream a file as it grows; it may not exist yet."""

    offset = 0
    path = ""

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.offset = self.header.get("offset", 0)
        self.agent.watcher.add(self)

    def look(self, ask_server: bool) -> bool:
        """Return whether there is more; if so, queue it."""
        if self.queued:
            return False
        more = bool(read_at(self.path, self.offset, 1))
        if not more and ask_server and not os.path.exists(self.path):
            more = exists(self.path, True)
        if more:
            self.agent.out.offer(self)
        return more

    def is_urgent(self) -> bool:
        return True

    def frame(self) -> "Optional[Frame]":
        data = read_at(self.path, self.offset) if self.path else b""
        if not data:
            return None
        frame = pack({"id": self.id, "offset": self.offset}, data)
        self.offset += len(data)
        return frame

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        self.agent.watcher.drop(self)


class WaitHandler(RequestHandler):
    """Once a file exists, send the rest of the drained follows, the file itself, then the `with` files.

    With `early`, send what there is of the `with` files before, as they grow.
    """

    def start(self) -> None:
        self.content_sent = self.is_there = False
        self.compressor = Compressor(self.agent.out.taken)
        self.path = expand(self.header["path"])
        self.drain = list(self.header.get("drain") or ())  # thousands of jobs wait: a deque takes ten times the memory
        self.paths = [expand(path) for path in self.header.get("with") or ()]
        offsets = self.header.get("offsets") or [0] * len(self.paths)
        self.files = [[i, path, offset] for i, (path, offset) in enumerate(zip(self.paths, offsets))]
        self.agent.watcher.add(self)

    def look(self, ask_server: bool) -> bool:
        if self.queued:
            return False
        self.is_there = exists(self.path, ask_server)
        if self.is_there:
            self.agent.watcher.drop(self)
        if self.is_there or self.growth():
            self.agent.out.offer(self)
            return True
        return False

    def growth(self) -> int:
        """Return how many bytes can be sent ahead; less than none if the file has become shorter."""
        if not self.header.get("early") or not self.files:
            return 0
        _, path, offset = self.files[0]
        more = size_of(path) - offset
        return more if more < 0 or more >= (EARLY_PIECE if offset else EARLY) else 0

    def is_urgent(self) -> bool:
        return self.is_there and bool(self.drain)

    def frame(self) -> "Optional[Frame]":
        if not self.is_there:
            self.look(False)  # which offers it again if there is more to send
            return None if self.is_there else self.early_frame()
        if self.drain:
            return self.next_drained_frame()
        if not self.files:
            self.end(b"" if self.content_sent else self.content())
            return None
        if not self.content_sent:
            self.content_sent = True
            return pack({"id": self.id, "content": True}, self.content())
        return self.next_file_frame()

    def content(self) -> bytes:
        with open(self.path, "rb") as file:
            return file.read()

    def next_drained_frame(self) -> "Frame":
        follow = self.agent.requests.get(self.drain[0])
        frame = follow.safely(follow.frame) if isinstance(follow, FollowHandler) else None
        if frame is None:
            self.drain.pop(0)
            if isinstance(follow, FollowHandler):
                follow.end()
        return frame or b""

    def early_frame(self) -> "Optional[Frame]":
        more = self.growth()
        if not more:
            self.compressor.rest()
            return None
        if more < 0:  # another attempt to write it: what was sent is void
            self.files[0][2] = 0
            return pack({"id": self.id, "file": self.files[0][0], "again": True})
        return self.next_piece({"early": True})

    def next_file_frame(self) -> "Frame":
        frame = self.next_piece({})
        if frame is None:
            self.files.pop(0)
        return frame or b""

    def next_piece(self, more: "Header") -> "Optional[Frame]":
        """Return a frame with the next piece of the first file; None at its end."""
        index, path, offset = self.files[0]
        header = dict(more, id=self.id, file=index, size=sum(map(size_of, self.paths)))
        size, frame = piece_of(path, offset, header, self.compressor)
        self.files[0][2] += size
        return frame if size else None

    def release(self) -> None:
        self.agent.watcher.drop(self)


class StillHandler(RequestHandler):
    """Report each time that a file's content has not changed for `silent_s`, by this agent's clock.

    A file that was never seen is not silent, nor one next to which there is what explains its silence (`unless`).
    """

    LOOKS = 4

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.unless = expand(self.header["unless"]) if self.header.get("unless") else ""
        self.silent = seconds(self.header, "silent_s", 60.0)
        self.seen = b""
        self.since = self.reported = time.monotonic()
        self.agent.stills.add(self, self.silent / self.LOOKS)

    def check_content(self) -> None:
        now = time.monotonic()
        content = read_at(self.path, 0, 4096) or self.seen
        if content != self.seen:
            self.seen, self.since, self.reported = content, now, now
        if self.seen and now - self.reported >= self.silent:
            self.reported = now
            if not (self.unless and os.path.lexists(self.unless)):
                self.send({"silent_s": now - self.since})

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        self.agent.stills.drop(self)
