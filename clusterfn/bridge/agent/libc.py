"""Call the C library by the C half of `ctypes` alone, and hear from it of changed folders. The bridge uses this too.

Loading `ctypes` itself takes 4 ms, and each job starts three processes that need one call each.
"""

import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, Set, Tuple


def libc_function(name: str) -> "Callable[..., int]":
    """Return a function of the C library, for arguments that are bytes or whole numbers of at most 31 bits.

    Raises:
        ImportError, OSError, AttributeError: This Python or its C library does not have it.
    """
    import _ctypes

    # None means this process itself, as a null pointer does for dlopen(3).
    process = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    address = _ctypes.dlsym(process, name)
    call = _ctypes.call_function
    return lambda *arguments: int(call(address, arguments))


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
        changes = set()
        at = 0
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
