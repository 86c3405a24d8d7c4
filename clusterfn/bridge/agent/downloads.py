"""Send files to the client as they are: one in pieces, or many small ones in a frame."""

import collections
import contextlib
import errno
import os
import stat
import time

from .compression import Compressor
from .files import CHUNK, exists, read_into
from .frames import FRAME, TURN_S, encoded, pack
from .handler import Failure, RequestHandler, expand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple, Union

    from .frames import Frame, Header

# The header of a frame is directly before the piece, so that one buffer holds both. It never needs more bytes.
HEAD = 1024
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
    except BaseException:  # the file must not stay open when a signal handler raises either
        os.close(fd)
        raise
    return fd, status


class FileHandler(RequestHandler):
    """Send a file at its present size, or its part before `until`; the client learns that size before the bytes.

    It stays open between two pieces: what takes its name meanwhile is another file. One that had to be closed, or whose
    first bytes an earlier agent has sent (`of`), must be the same still.
    """

    # A client may request thousands of files at once. Beyond this number, a file is reopened for each piece.
    MOST_OPEN = 64
    are_open = 0
    fd = size = -1

    def start(self) -> None:
        self.path = self.own(self.header["path"])
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
        if self.offset >= self.size or FileHandler.are_open > self.MOST_OPEN:
            self.release()
        return frame

    def open(self) -> None:
        self.fd, status = open_regular(self.path)
        FileHandler.are_open += 1
        of = [status.st_ino]
        # A file that grows gets a new modification time with each write, but the bytes before `until` stay the same.
        if "until" not in self.header:
            of.append(status.st_mtime_ns)
        if self.of not in (None, of):
            raise Failure("changed", "another file took its name while it was read", self.path)
        self.of = of
        if self.size < 0:
            self.size = min(status.st_size, self.header.get("until", status.st_size))

    def release(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            FileHandler.are_open -= 1
            with contextlib.suppress(OSError):
                # A file server may report an error at close. All requested bytes have been read by then, so it means
                # nothing here.
                os.close(fd)


class ManyFilesHandler(RequestHandler):
    """Send small files whole, many in a frame. What has grown, or cannot be read at once, has to be asked for alone."""

    def start(self) -> None:
        self.folder = expand(self.header["path"])
        for below in {os.path.dirname(name) for name, _ in self.header["files"]}:
            self.own(os.path.join(self.folder, below, "file"))
        self.files = collections.deque((name, size) for name, size in self.header["files"])
        self.agent.out.offer(self)

    def frame(self) -> "Optional[Frame]":
        if not self.files:
            self.end()
            return None
        sizes: "List[Optional[int]]" = []
        # Each file may cost a round trip to a file server, so the time is limited as well as the size.
        filled, until = 0, time.monotonic() + TURN_S
        while self.files and (not sizes or (filled + self.files[0][1] < CHUNK and time.monotonic() < until)):
            name, size = self.files.popleft()
            sizes.append(self.read(name, _frame[HEAD + filled : HEAD + filled + size + 1]))
            filled += sizes[-1] or 0
        return pack({"id": self.id, "sizes": sizes}, _frame[HEAD : HEAD + filled])

    def read(self, name: str, room: memoryview) -> "Optional[int]":
        """Read a whole file, and return its size; None if it is not smaller than the room for it."""
        try:
            fd, status = open_regular(os.path.join(self.folder, name))
            try:
                size = os.readv(fd, [room])
            finally:
                os.close(fd)
        except (Failure, OSError, ValueError):
            # The client requests this file once more, and that request reports the error.
            return None
        # A read from a file server may return fewer bytes than the file has. Such a file is not reported as whole.
        return size if size == status.st_size < len(room) else None
