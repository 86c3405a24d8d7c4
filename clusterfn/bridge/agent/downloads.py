"""Send files to the client: as they are, as they grow, or once they exist. Also report silent ones."""

import collections
import contextlib
import errno
import os
import stat
import time

from .compression import Compressor
from .files import CHUNK, exists, read_at, read_into, size_of
from .frames import FRAME, encoded, pack
from .handler import Failure, RequestHandler, expand, seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple, Union

    from .frames import Frame, Header


HEAD = 1024  # bytes, which the head of a frame with a piece of a file has at most
EARLY = 1024 * 1024  # bytes of a file that is being written, from which on it is sent ahead
EARLY_PIECE = 64 * 1024
_frame = memoryview(bytearray(HEAD + CHUNK))


def piece_of(
    path: "Union[str, int]", offset: int, header: "Header", compressor: Compressor, most: int = CHUNK
) -> "Tuple[int, Frame]":  # fmt: skip
    """Return the size of the next piece of a file, and a frame with it, which must be sent before the next is made.

    All of them use one buffer: the memory stays in the processor's cache, and no piece is copied on a fast link.
    """
    size = read_into(path, offset, _frame[HEAD : HEAD + most])
    small = compressor.compress(_frame[HEAD : HEAD + size])
    if small is not None:
        return size, pack(dict(header, zlib=True), small)
    text = encoded(header)
    begin = HEAD - FRAME.size - len(text)
    _frame[begin:HEAD] = FRAME.pack(len(text), size) + text
    return size, _frame[begin : HEAD + size]


def open_regular(path: str) -> "Tuple[int, os.stat_result]":
    """Open a file to read it; reject what is no regular file: a pipe would keep all other requests waiting."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise Failure("io", os.strerror(errno.EISDIR), path, errno.EISDIR)
        if not stat.S_ISREG(status.st_mode):
            raise Failure("io", "it is not a regular file", path)
    except BaseException:
        os.close(fd)
        raise
    return fd, status


class GetHandler(RequestHandler):
    """Send a file at its present size, or its part before `until`; the client learns that size before the bytes.

    It stays open between two pieces: what takes its name meanwhile is another file. One that had to be closed, or whose
    first bytes an earlier agent has sent (`of`), must be the same still.
    """

    MOST_OPEN = 64  # a client may ask for thousands at once
    are_open = 0
    fd = size = -1

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.offset = self.header.get("offset", 0)
        self.of = self.header.get("of")
        self.compressor = Compressor(self.agent.out.taken)
        if not exists(self.path, True):
            raise Failure("missing", os.strerror(errno.ENOENT), self.path, errno.ENOENT)
        self.agent.out.offer(self)

    def frame(self) -> "Optional[Frame]":
        if self.fd < 0 and (self.size < 0 or self.offset < self.size):
            self.open()
        most = min(CHUNK, self.size - self.offset)
        if most <= 0:
            self.end(size=self.offset)
            return None
        header = {"id": self.id, "size": self.size, "of": self.of}
        size, frame = piece_of(self.fd, self.offset, header, self.compressor, most)
        if not size:
            raise Failure("changed", "it became shorter while it was read", self.path)
        self.offset += size
        if self.offset >= self.size or GetHandler.are_open > self.MOST_OPEN:
            self.release()
        return frame

    def open(self) -> None:
        self.fd, status = open_regular(self.path)
        GetHandler.are_open += 1
        of = [status.st_ino]
        if "until" not in self.header:  # of what grows, the parts that are there stay as they are
            of.append(status.st_mtime_ns)
        if self.of not in (None, of):
            raise Failure("changed", "another file took its name while it was read", self.path)
        self.of = of
        if self.size < 0:
            self.size = min(status.st_size, self.header.get("until", status.st_size))

    def release(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            GetHandler.are_open -= 1
            with contextlib.suppress(OSError):  # of a file server; all that was wanted has been read
                os.close(fd)


class GetEachHandler(RequestHandler):
    """Send small files whole, many in one frame. It leaves to `get` what has grown, or cannot be read."""

    TURN_S = 0.005  # so long other requests wait for a frame: each file may be a question to a file server

    def start(self) -> None:
        self.folder = expand(self.header["path"])
        self.files = collections.deque((name, size) for name, size in self.header["files"])
        self.agent.out.offer(self)

    def frame(self) -> "Optional[Frame]":
        if not self.files:
            self.end()
            return None
        sizes: "List[Optional[int]]" = []
        filled, until = 0, time.monotonic() + self.TURN_S
        while self.files and (not sizes or (filled + self.files[0][1] < CHUNK and time.monotonic() < until)):
            name, size = self.files.popleft()
            sizes.append(self.read(name, _frame[HEAD + filled : HEAD + filled + size + 1]))
            filled += sizes[-1] or 0
        return pack({"id": self.id, "sizes": sizes}, _frame[HEAD : HEAD + filled])

    def read(self, name: str, room: memoryview) -> "Optional[int]":
        """Read a whole file, and return its size; None if it is not smaller than the room for it."""
        try:
            fd, _ = open_regular(os.path.join(self.folder, name))
            try:
                size = os.readv(fd, [room])
            finally:
                os.close(fd)
        except (Failure, OSError):  # `get` answers with it
            return None
        return size if size < len(room) else None


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
        self.drain = collections.deque(self.header.get("drain") or ())
        self.paths = [expand(path) for path in self.header.get("with") or ()]
        offsets = self.header.get("offsets") or [0] * len(self.paths)
        self.files = collections.deque([i, path, offset] for i, (path, offset) in enumerate(zip(self.paths, offsets)))
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
            self.drain.popleft()
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
            self.files.popleft()
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

    A file that was never seen is not silent.
    """

    LOOKS = 4

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.silent = seconds(self.header, "silent_s", 60.0)
        self.seen = b""
        self.since = self.reported = time.monotonic()
        self.turn()

    def turn(self) -> None:
        if not self.ended:
            self.safely(self.check_content)

    def check_content(self) -> None:
        now = time.monotonic()
        content = read_at(self.path, 0, 4096) or self.seen
        if content != self.seen:
            self.seen, self.since, self.reported = content, now, now
        if self.seen and now - self.reported >= self.silent:
            self.reported = now
            self.send({"silent_s": now - self.since})
        every_s = self.silent / self.LOOKS
        # All of one interval look at the same moment: a thousand jobs wake this process no more often than one.
        self.agent.at(every_s - now % every_s if every_s else 0.0, self.turn)

    def stop(self) -> None:
        self.end()
