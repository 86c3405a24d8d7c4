"""Be notified by the kernel that a folder changed, on Linux. The bridge uses this file too."""

import os
import struct
import sys

from .libc import libc_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Set, Tuple


class Inotify:
    """Reports changed folders; on network file systems only the changes that this machine makes."""

    # IN_MODIFY, IN_CLOSE_WRITE, IN_MOVED_TO and IN_CREATE. Python has no names for them.
    MASK = 0x2 | 0x8 | 0x80 | 0x100
    EVENT = struct.Struct("iIII")

    def __init__(self) -> None:
        self.add_watch, self.remove_watch = libc_function("inotify_add_watch"), libc_function("inotify_rm_watch")
        self.fd = libc_function("inotify_init1")(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError("the kernel gives this user no more inotify descriptors")

    def add(self, folder: str) -> int:
        """Watch a folder and return its number, the same each time; -1 if the kernel refuses."""
        return self.add_watch(self.fd, os.fsencode(folder), self.MASK)

    def remove(self, number: int) -> None:
        self.remove_watch(self.fd, number)

    def events(self) -> "Set[int]":
        """Return the numbers of the folders in which something changed."""
        return {number for number, _ in self.changes()}

    def changes(self) -> "Set[Tuple[int, str]]":
        """Return what changed: the number of its folder, and its name there."""
        try:
            data = os.read(self.fd, 64 * 1024)
        except BlockingIOError:
            return set()
        changes, at = set(), 0
        while at < len(data):
            number, _, _, size = self.EVENT.unpack_from(data, at)
            at += self.EVENT.size + size
            changes.add((number, os.fsdecode(data[at - size : at].rstrip(b"\0"))))
        return changes


def new_inotify() -> "Optional[Inotify]":
    try:
        return Inotify() if sys.platform.startswith("linux") else None
    except (ImportError, OSError, AttributeError):
        return None
