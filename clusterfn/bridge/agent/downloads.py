"""Send files to the client as they are, in pieces; say which paths exist, and which files are below a folder."""

import contextlib
import errno
import json
import os
import stat

from .files import CHUNK, exists, glob_pattern, is_there, read_into, record_use
from .frames import FRAME, TOGETHER, encoded
from .handler import Failure, RequestHandler, expand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Optional, Tuple, Union

    from .frames import Frame, Header

# The header of a frame is directly before the piece, so that one buffer holds both. It never needs more bytes.
HEAD = 1024
_frame = memoryview(bytearray(HEAD + CHUNK))


def read_piece(path: "Union[str, int]", offset: int, most: int = CHUNK) -> int:
    """Read the next piece of a file for `frame_of`; return its size."""
    return read_into(path, offset, _frame[HEAD : HEAD + most])


def frame_of(size: int, header: "Header") -> "Frame":
    """Return a frame with the piece that was read last. A large one must be sent before the next is read.

    All of them use one buffer: the memory stays in the processor's cache, and no large piece is copied.
    """
    text = encoded(header)
    begin = HEAD - FRAME.size - len(text)
    _frame[begin:HEAD] = FRAME.pack(len(text), size) + text
    frame = _frame[begin : HEAD + size]
    # Small frames are written together.
    return bytes(frame) if len(frame) < TOGETHER else frame


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
        if not exists(self.path, True):
            raise Failure("missing", os.strerror(errno.ENOENT), self.path, errno.ENOENT)
        self.agent.out.offer(self)

    def frame(self) -> "Optional[Frame]":
        if self.fd < 0 and (self.size < 0 or self.offset < self.size):
            self.open()
        size = read_piece(self.fd, self.offset, max(0, min(CHUNK, self.size - self.offset))) if self.fd >= 0 else 0
        if not size and self.offset < self.size:
            raise Failure("changed", "it became shorter while it was read", self.path)
        self.offset += size
        header: "Header" = {"id": self.id, "size": self.size, "of": self.of}
        if self.offset >= self.size:
            # The last piece is the last answer, so that a small file takes one frame.
            header.update(end=True, ok=True)
            self.close(None, None)
        elif FileHandler.are_open > self.MOST_OPEN:
            self.release()
        return frame_of(size, header)

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


class PathsHandler(RequestHandler):
    def start(self) -> None:
        have = []
        for path in map(expand, self.header["paths"]):
            # The date is set before the check: a path that exists afterwards is not removed for a while.
            record_use(path, self.agent.root)
            have.append(is_there(path))
        self.end(have=have)


class PatternHandler(RequestHandler):
    """List the regular files below a folder, and links to such, a few hundred entries per turn of the loop."""

    ENTRIES_A_TURN = 500
    # An answer is a single header, and the client accepts one of up to twice this size.
    MOST_BYTES = 4 * 1024 * 1024

    def start(self) -> None:
        self.path = expand(self.header["path"])
        self.match = glob_pattern(self.header.get("glob") or "**").match
        self.limit = self.header.get("limit") or 10000
        self.found: "List[Any]" = []
        self.room = self.MOST_BYTES
        os.listdir(self.path)
        self.walk = self.entries(self.path, "")
        self.agent.out.offer(self)

    def entries(self, folder: str, prefix: str) -> "Iterator[Optional[Any]]":
        for name in sorted(os.listdir(folder)):
            place = os.path.join(folder, name)
            try:
                status = os.lstat(place)
            except FileNotFoundError:
                continue
            # Only links whose name matches are followed, because any other may lead to a file server that hangs.
            if stat.S_ISLNK(status.st_mode) and self.match(prefix + name):
                with contextlib.suppress(OSError):
                    # A link that leads nowhere keeps its own status, and so counts as no regular file.
                    status = os.stat(place)
            elif stat.S_ISDIR(status.st_mode):
                yield None
                yield from self.entries(place, prefix + name + "/")
            if stat.S_ISREG(status.st_mode) and self.match(prefix + name):
                yield [prefix + name, status.st_size, status.st_mtime, status.st_mode]
            else:
                yield None

    def frame(self) -> "Optional[Frame]":
        for _ in range(self.ENTRIES_A_TURN):
            try:
                entry = next(self.walk)
            except StopIteration:
                self.end(files=self.found, truncated=False)
                return None
            if entry is None:
                continue
            self.room -= len(json.dumps(entry[0]))
            if len(self.found) == self.limit or self.room < 0:
                self.end(files=self.found, truncated=True)
                return None
            self.found.append(entry)
        return b""
