"""The `.part` files of uploads: how they are written, how the next agent continues one, when those left behind go."""

import collections
import contextlib
import os
import re
import time
import zlib

from .files import CHUNK, remove_tree, write_all
from .handler import Failure
from .trusted import first_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Deque, Iterator, Optional, Sequence, Tuple

    from .frames import Frame, Header

    # Place, size, mode and CRC-32 of a file.
    Plan = Tuple[str, int, int, Optional[int]]

DAY_S = 24 * 3600.0
# File systems allow names of 255 bytes; the rest of a part's name needs the difference.
_LONGEST_NAME = 200
READ_BACK_A_TURN = 16 * 1024 * 1024
# The first number at the end names the agent, or the start of the machine; the second names the request.
PART = re.compile(r".+\.part-\d+-\d+\Z", re.DOTALL)
# A random number instead of the pid: in a container, a later agent has the same pid.
_OWN = int.from_bytes(os.urandom(6), "big")


class Part:
    """What has been written of one upload: a file, or a folder of files, until it is renamed to its final path.

    Attributes:
        path: Its final path, which errors name.
        place: Where it is written.
        files: Place, size, mode and CRC-32 of each file that has not been opened yet.
        flush: Writes an open file to the disk; None if a child process does so, or nothing need survive a power cut.
        left: Bytes of the open one that are still to come.
        crc: The checksum of what has come of it.
        expected_crc: What that must be at its end; None if the client does not say so.
    """

    open_place = folder = ""
    fd = -1
    left = crc = 0
    flush: "Optional[Callable[[int], object]]" = None
    expected_crc: "Optional[int]" = None

    def __init__(self, path: str, place: str) -> None:
        self.path, self.place = path, place
        self.files: "Deque[Plan]" = collections.deque()

    def plan_file(self, name: str, size: int, mode: int, crc: "Optional[int]" = None) -> "Plan":
        """Return the plan of a file of a folder."""
        parts = name.split("/")
        if not name or name.startswith("/") or ".." in parts or "" in parts or "." in parts or "\0" in name:
            raise Failure("bad", "%r is not a name below the folder" % name, self.path)
        return os.path.join(self.place, name), size, mode, crc

    def write(self, body: "Frame") -> int:
        """Write what has come; return how many bytes came that belong to no file."""
        data = memoryview(body)
        while self.has_room(len(data)):
            write_all(self.fd, data[: self.left])
            size = min(self.left, len(data))
            if self.expected_crc is not None:
                self.crc = zlib.crc32(data[:size], self.crc)
            self.left -= size
            data = data[size:]
        return len(data)

    def has_room(self, size: int) -> bool:
        """Whether the current file takes more; when it is complete, open the next one."""
        while self.left == 0 and (self.fd >= 0 or self.files):
            if not self.next_file():
                return False
        return bool(self.left and size)

    def next_file(self) -> bool:
        self.close_file()
        if not self.files:
            return False
        place, self.left, mode, self.expected_crc = self.files.popleft()
        folder = os.path.dirname(place)
        # Thousands of files may be in the same folder, which is checked and made only once.
        if folder != self.folder:
            # A missing part means that another agent has taken it over to continue it. A second one must not be made.
            if place != self.place and not os.path.isdir(self.place):
                raise Failure("missing", "the folder is gone that it was written to", self.path)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self.folder = folder
        # The file stays private until it has its mode. `open` cannot set that mode, because the umask would change it.
        self.fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.open_place = place
        self.crc = 0
        os.fchmod(self.fd, mode & 0o7777)
        return True

    def close_file(self) -> None:
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1
        try:
            if self.flush:
                self.flush(fd)
        finally:
            os.close(fd)
        if self.expected_crc is not None and not self.left and self.crc != self.expected_crc:
            file = "" if self.open_place == self.place else " of " + os.path.relpath(self.open_place, self.place)
            message = "the bytes%s that came have another checksum: did the file change while it was sent?"
            raise Failure("bad", message % file, self.path)

    def add(self, folders: "Sequence[str]", links: "Sequence[Tuple[str, str]]") -> None:
        """Make the further folders of a folder, and its links, by their names in it."""
        for name in folders:
            os.makedirs(self.plan_file(name, 0, 0)[0], mode=0o700, exist_ok=True)
        for name, target in links:
            place = self.plan_file(name, 0, 0)[0]
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            # The agent that began this upload may have made it.
            with contextlib.suppress(FileExistsError):
                os.symlink(target, place)

    def read_back(self) -> "Iterator[Optional[int]]":
        """Take up what the last sending has left, and its checksums. Give the number of bytes that are there.

        Give None after every few MB, because the loop must not block.
        """
        at = turn = 0
        while self.files and not self.left and os.path.exists(self.files[0][0]):
            size = self.reopen(*self.files.popleft())
            position = 0
            while self.expected_crc is not None and position < size:
                piece = os.pread(self.fd, min(CHUNK, size - position), position)
                if not piece:
                    raise Failure("bad", "%s has become shorter" % self.open_place, self.path)
                self.crc = zlib.crc32(piece, self.crc)
                position += len(piece)
                turn += len(piece)
                if turn >= READ_BACK_A_TURN:
                    turn = 0
                    yield None
            at += size
        yield at

    def reopen(self, place: str, size: int, mode: int, crc: "Optional[int]") -> int:
        """Open a file at its end; return how many bytes it has."""
        self.close_file()
        # The file may have been created with a mode that forbids its owner to write to it.
        os.chmod(place, 0o600)
        self.fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        os.fchmod(self.fd, mode & 0o7777)
        self.open_place = place
        self.crc = 0
        self.expected_crc = crc
        size_on_disk = os.lseek(self.fd, 0, os.SEEK_END)
        if size_on_disk > size:
            raise Failure("bad", "%s is longer than what was announced" % place, self.path)
        self.left = size - size_on_disk
        return size_on_disk

    def give_up(self) -> None:
        """Close the file that is open. A file server may report only now what it could not write."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def remove(self) -> None:
        """Remove it, unless it has its final name already, or the disk accepts no changes any more."""
        if os.path.isdir(self.place):
            remove_tree(self.place)
        else:
            with contextlib.suppress(OSError):
                os.unlink(self.place)


def place_for(path: str, request: "Header", boot: str, sending: int) -> str:
    """Return where the bytes of one sending of a request are written.

    Args:
        boot: Names the time since this machine was started: later, or elsewhere, a part may lack bytes that were
            written. "" where that is not known, so that nothing can be continued.
    """
    folder, name = os.path.split(path)
    begin = os.path.join(folder, os.fsdecode(os.fsencode(name)[:_LONGEST_NAME]))
    if not boot:
        return "%s.part-%d-%d" % (begin, _OWN, request["id"])
    return "%s.part-%d-%d%03d" % (begin, zlib.crc32(boot.encode()), request["resume"], sending)


def take_over(path: str, request: "Header", boot: str) -> None:
    """Take what the last sending has left; an agent that has not noticed its end cannot find it any more."""
    latest = request.get("resumed") or 0
    for sending in range(latest - 1 if boot else -1, -1, -1):
        with contextlib.suppress(FileNotFoundError):
            return os.rename(place_for(path, request, boot, sending), place_for(path, request, boot, latest))
    return None


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
    return max(os.lstat(name).st_mtime for name in [path] + inside)
