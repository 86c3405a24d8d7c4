"""Files that go to the client: as they are, as they grow, once they exist; and word of those that stop changing."""

import collections
import errno
import os
import time

from .failures import Failure
from .files import CHUNK, exists, read_at, size_of
from .frames import pack
from .paths import expand
from .request import Request, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class Get(Request):
    """A file as large as it is now: the client is told how many bytes there are before they come."""

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.offset = self.header.get("offset", 0)
        if not exists(self.path, True):
            raise Failure("missing", os.strerror(errno.ENOENT), self.path, errno.ENOENT)
        with open(self.path, "rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            self.agent.out.offer(self)

    def frame(self) -> "Optional[bytes]":
        data = read_at(self.path, self.offset, max(0, min(CHUNK, self.size - self.offset)))
        self.offset += len(data)
        if data:
            return pack({"id": self.id, "size": self.size}, data)
        self.end(size=self.offset)
        return None


class Follow(Request):
    """A file as it grows; it may not exist yet."""

    offset = 0
    path = ""

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.offset = self.header.get("offset", 0)
        self.agent.watch.add(self)

    def look(self, ask_server: bool) -> bool:
        """Whether there is more; if so it is sent."""
        if self.queued:
            return False
        more = bool(read_at(self.path, self.offset, 1))
        if not more and ask_server and not os.path.exists(self.path):
            more = exists(self.path, True)
        if more:
            self.agent.out.offer(self)
        return more

    def hot(self) -> bool:
        return True

    def frame(self) -> "Optional[bytes]":
        data = read_at(self.path, self.offset) if self.path else b""
        if not data:
            return None
        frame = pack({"id": self.id, "offset": self.offset}, data)
        self.offset += len(data)
        return frame

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        self.agent.watch.drop(self)


class Wait(Request):
    """Once a file exists: the rest of the drained follows, the file itself, then the `with` files that it describes."""

    def start(self) -> None:
        self.told = False
        self.path = expand(self.header["path"])
        self.drain = collections.deque(self.header.get("drain") or ())
        places = [expand(path) for path in self.header.get("with") or ()]
        offsets = self.header.get("offsets") or [0] * len(places)
        self.places = places
        self.files = collections.deque([i, place, offset] for i, (place, offset) in enumerate(zip(places, offsets)))
        self.agent.watch.add(self)

    def look(self, ask_server: bool) -> bool:
        if self.queued or not exists(self.path, ask_server):
            return False
        self.agent.watch.drop(self)
        self.agent.out.offer(self)
        return True

    def hot(self) -> bool:
        return bool(self.drain)

    def frame(self) -> "Optional[bytes]":
        if self.drain:
            return self.drained()
        if not self.files:
            self.end(b"" if self.told else self.content())
            return None
        if not self.told:
            self.told = True
            return pack({"id": self.id, "content": True}, self.content())
        return self.of_files()

    def content(self) -> bytes:
        with open(self.path, "rb") as file:
            return file.read()

    def drained(self) -> bytes:
        follow = self.agent.requests.get(self.drain[0])
        frame = follow.safely(follow.frame) if isinstance(follow, Follow) else None
        if frame is None:
            self.drain.popleft()
            if isinstance(follow, Follow):
                follow.end()
        return frame or b""

    def of_files(self) -> bytes:
        index, place, offset = self.files[0]
        data = read_at(place, offset)
        if not data:
            self.files.popleft()
            return b""
        self.files[0][2] += len(data)
        return pack({"id": self.id, "file": index, "size": sum(map(size_of, self.places))}, data)

    def release(self) -> None:
        self.agent.watch.drop(self)


class Still(Request):
    """Says so each time a file's content has not changed for `silent_s`, by this agent's clock. A file that has never
    been seen is not silent."""

    LOOKS = 4

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.silent = seconds(self.header, "silent_s", 60.0)
        self.seen = b""
        self.since = self.told = time.monotonic()
        self.turn()

    def turn(self) -> None:
        if not self.ended:
            self.safely(self.one_look)

    def one_look(self) -> None:
        now = time.monotonic()
        content = read_at(self.path, 0, 4096) or self.seen
        if content != self.seen:
            self.seen, self.since, self.told = content, now, now
        if self.seen and now - self.told >= self.silent:
            self.told = now
            self.send({"silent_s": now - self.since})
        self.agent.at(self.silent / self.LOOKS, self.turn)

    def stop(self) -> None:
        self.end()
