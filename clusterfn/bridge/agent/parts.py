"""The `.part` files of uploads: their names, how the next agent continues one, and when those left behind go."""

import collections
import contextlib
import os
import re
import time
import zlib

from .facts import first_line
from .files import CHUNK, remove_tree
from .handler import Failure, RequestHandler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Optional

DAY_S = 24 * 3600.0
READ_BACK_A_TURN = 16 * 1024 * 1024
PART = re.compile(r".+\.part-\d+-\d+\Z", re.DOTALL)
_OWN = int.from_bytes(os.urandom(6), "big")  # not the pid: in a container a later agent has the same


class PartWriter(RequestHandler):
    """Writes `.part` files, and takes up those of an agent whose connection was lost.

    Attributes:
        files: Place, size, mode and time of each file that has not been opened yet.
        left: Bytes of the open one that are still to come.
        crc: The checksum of what has come; None if the client does not say of what it must be.
    """

    part = path = place = ""
    fd = -1
    left = 0
    resumable = False
    crc: "Optional[int]" = None
    mtime: "Optional[float]" = None
    files: "Deque[Any]" = collections.deque()

    def close_file(self) -> None:
        raise NotImplementedError

    def part_of(self, sending: int) -> str:
        """Return where the bytes of one sending of this request are written."""
        if not self.resumable:
            return "%s.part-%d-%d" % (self.path, _OWN, self.id)
        # On another machine, or after a restart of this one, it may lack bytes that were written.
        boot = zlib.crc32(first_line("/proc/sys/kernel/random/boot_id").encode())
        return "%s.part-%d-%d%03d" % (self.path, boot, self.header["resume"], sending)

    def take_over(self) -> None:
        """Take what the last sending has left; an agent that has not noticed its end cannot find it any more."""
        for sending in range((self.header.get("resumed") or 0) - 1, -1, -1):
            with contextlib.suppress(FileNotFoundError):
                return os.rename(self.part_of(sending), self.part)
        return None

    def resume(self) -> None:
        """Take up what an earlier agent has left, and say from which byte on the rest is to come."""
        at = 0
        while self.files and not self.left and os.path.exists(self.files[0][0]):
            at += self.reopen(*self.files.popleft())
        self.read_back(at)

    def reopen(self, place: str, size: int, mode: int, mtime: "Optional[float]") -> int:
        """Open a file at its end; return how many bytes it has."""
        self.close_file()
        os.chmod(place, 0o600)
        self.fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        os.fchmod(self.fd, mode & 0o7777)
        self.place, self.mtime = place, mtime
        found = os.lseek(self.fd, 0, os.SEEK_END)
        if found > size:
            raise Failure("bad", "%s is longer than what was announced" % place, self.path)
        self.left = size - found
        return found

    def read_back(self, at: int, position: int = 0) -> None:
        """Take the checksum of what is there, some MB a turn; then answer."""
        until = min(at, position + READ_BACK_A_TURN)
        while self.crc is not None and position < until:
            piece = os.pread(self.fd, min(CHUNK, until - position), position)
            if not piece:
                raise Failure("bad", "%s has become shorter" % self.place, self.path)
            self.crc = zlib.crc32(piece, self.crc)
            position += len(piece)
        if self.crc is None or position == at:
            self.send({"at": at})
        elif not self.ended:
            self.agent.at(0.0, lambda: self.safely(lambda: self.read_back(at, position)))


def remove_old_parts(folder: str) -> None:
    try:
        found = [os.path.join(folder, name) for name in os.listdir(folder) if PART.match(name)]
        old = [path for path in found if time.time() - newest(path) > DAY_S]
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
    return max(os.lstat(each).st_mtime for each in [path] + inside)
