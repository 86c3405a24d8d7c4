"""The `.part` files of uploads: their names, how the next agent continues one, and when those left behind go."""

import collections
import contextlib
import os
import re
import time
import zlib

from .files import CHUNK, remove_tree
from .handler import Failure, RequestHandler
from .trusted import first_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Iterator, Optional

DAY_S = 24 * 3600.0
# File systems allow names of 255 bytes; the rest of a part's name needs the difference.
_LONGEST_NAME = 200
READ_BACK_A_TURN = 16 * 1024 * 1024
# The first number at the end names the agent, or the start of the machine; the second names the request.
PART = re.compile(r".+\.part-\d+-\d+\Z", re.DOTALL)
# A random number instead of the pid: in a container, a later agent has the same pid.
_OWN = int.from_bytes(os.urandom(6), "big")


class PartWriter(RequestHandler):
    """Writes `.part` files, and takes up those of an agent whose connection was lost.

    Attributes:
        files: Place, size, mode and CRC-32 of each file that has not been opened yet.
        left: Bytes of the open one that are still to come.
        crc: The checksum of what has come of it.
        expected_crc: What that must be at its end; None if the client does not say so.
        boot: Names the time since this machine was started: later, or elsewhere, a part may lack bytes that were
            written. "" where that is not known, so that nothing can be continued.
    """

    part = path = place = boot = ""
    fd = -1
    left = crc = 0
    resumable = False
    expected_crc: "Optional[int]" = None
    files: "Deque[Any]" = collections.deque()

    def close_file(self) -> None:
        raise NotImplementedError

    def part_of(self, sending: int) -> str:
        """Return where the bytes of one sending of this request are written."""
        folder, name = os.path.split(self.path)
        begin = os.path.join(folder, os.fsdecode(os.fsencode(name)[:_LONGEST_NAME]))
        if not self.resumable:
            return "%s.part-%d-%d" % (begin, _OWN, self.id)
        return "%s.part-%d-%d%03d" % (begin, zlib.crc32(self.boot.encode()), self.header["resume"], sending)

    def take_over(self) -> None:
        """Take what the last sending has left; an agent that has not noticed its end cannot find it any more."""
        for sending in range((self.header.get("resumed") or 0) - 1 if self.resumable else -1, -1, -1):
            with contextlib.suppress(FileNotFoundError):
                return os.rename(self.part_of(sending), self.part)
        return None

    def resume(self, reading: "Iterator[None]") -> None:
        """Read what is there, some MB a turn: the loop must not block."""
        if not self.ended and next(reading, True) is None:
            self.agent.at(0.0, lambda: self.safely(lambda: self.resume(reading)))

    def read_back(self) -> "Iterator[None]":
        """Take up what the last sending has left and its checksums, then say from which byte on the rest is to come."""
        at = turn = 0
        while self.files and not self.left and os.path.exists(self.files[0][0]):
            size = self.reopen(*self.files.popleft())
            position = 0
            while self.expected_crc is not None and position < size:
                piece = os.pread(self.fd, min(CHUNK, size - position), position)
                if not piece:
                    raise Failure("bad", "%s has become shorter" % self.place, self.path)
                self.crc = zlib.crc32(piece, self.crc)
                position += len(piece)
                turn += len(piece)
                if turn >= READ_BACK_A_TURN:
                    turn = 0
                    yield
            at += size
        self.send({"at": at})

    def reopen(self, place: str, size: int, mode: int, crc: "Optional[int]") -> int:
        """Open a file at its end; return how many bytes it has."""
        self.close_file()
        # The file may have been created with a mode that forbids its owner to write to it.
        os.chmod(place, 0o600)
        self.fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        os.fchmod(self.fd, mode & 0o7777)
        self.place = place
        self.crc = 0
        self.expected_crc = crc
        size_on_disk = os.lseek(self.fd, 0, os.SEEK_END)
        if size_on_disk > size:
            raise Failure("bad", "%s is longer than what was announced" % place, self.path)
        self.left = size - size_on_disk
        return size_on_disk


def boot_id() -> str:
    return first_line("/proc/sys/kernel/random/boot_id")


def remove_old_parts(folder: str) -> None:
    try:
        parts = [os.path.join(folder, name) for name in os.listdir(folder) if PART.match(name)]
        old = [path for path in parts if time.time() - newest(path) > DAY_S]
    except OSError:
        return
    for path in old:
        if os.path.isdir(path) and not os.path.islink(path):
            remove_tree(path)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)


def newest(path: str) -> float:
    """Return when it last changed: a folder does so by what is in it."""
    inside = [os.path.join(folder, name) for folder, folders, files in os.walk(path) for name in folders + files]
    return max(os.lstat(entry).st_mtime for entry in [path] + inside)
