"""Where a large value lands: in memory of its own, or in a file that is mapped if it does not fit into memory.

Arrays of the value use that memory as it is. It belongs to nothing else, so the system has it back as soon as the last
array is gone.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
import tempfile
import time
import weakref
import zlib
from pathlib import Path
from typing import IO, Union

# Leave so many bytes of a disk free for other programs.
_SPARE = 1 << 30
_IN_MEMORY = ("tmpfs", "ramfs")
# Used where /tmp is in memory. The file there has no name, so nothing stays behind if the process is killed.
_LARGE_FOLDER = "/var/tmp"
_LARGE_PAGE = 2 << 20
# If the first use of a large page takes longer than this, small pages for the same memory are as fast.
_SLOW_S = 1e-3


class LargeValue(mmap.mmap):
    """The bytes of a large value, which can be written to.

    Attributes:
        crc: CRC-32 of what follows its first line, taken as the bytes came; None if it was not.
    """

    crc: int | None = None


Value = Union[bytearray, memoryview, LargeValue]


class Landing:
    """Takes the bytes of a value of known size as they come, and their checksum.

    Args:
        size: Bytes of all of it.
        folder: Where to keep it as a file without a name; None keeps it in memory.

    Attributes:
        came: Bytes that have come.

    Raises:
        OSError: There is no room for it after all; `take` and `value` raise this too.
    """

    def __init__(self, size: int, folder: str | None = None) -> None:
        self.size = size
        self.folder = folder
        self.came = 0
        # The checksum leaves out the first line, so it is None until that line has ended.
        self._crc: int | None = None
        self._file: IO[bytes] | None = None
        self._memory: LargeValue | None = None
        # Counts the bytes whose pages were used already; None if this value uses no large pages.
        self._touched: int | None = None
        if folder is None:
            try:
                self._memory = _own_memory(size)
                self._touched = 0 if _ask_for_large_pages(self._memory) else None
            except (OverflowError, ValueError) as error:
                # A size that no address can name fails like one that does not
                # fit into memory, so callers need only one handler.
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error
        else:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="clusterfn-", buffering=0)  # noqa: SIM115 - closed below
        _landings[id(self)] = self

    def __del__(self) -> None:
        if self._file is not None:
            # A value that was dropped before it was mapped must close its file itself.
            self._file.close()

    def take(self, piece: bytes) -> None:
        """Take the next bytes, of which there may not be more than its size."""
        if self._memory is not None:
            # Touch one page ahead, because a mapping may begin anywhere within a large page.
            end = min(self.size, self.came + len(piece) + _LARGE_PAGE)
            while self._touched is not None and self._touched < end:
                self._touch_large_page()
            self._memory[self.came : self.came + len(piece)] = piece
        else:
            assert self._file is not None
            rest = memoryview(piece)
            while rest:
                rest = rest[self._file.write(rest) :]
        self.came += len(piece)
        if self._crc is None and (end := piece.find(b"\n")) >= 0:
            piece, self._crc = piece[end + 1 :], 0
        if self._crc is not None:
            self._crc = zlib.crc32(piece, self._crc)

    def _touch_large_page(self) -> None:
        """Use the next large page for the first time; if that is slow, ask for small ones from here on.

        The kernel may have to move other memory first. In a virtual machine that returns free memory, a large page has
        to come from its host: 200 MB took 0.4 s so, and 0.1 s in small pages.
        """
        assert self._memory is not None and self._touched is not None
        # Measure the time of this thread alone, because other threads and processes may delay it at any moment.
        began = time.thread_time()
        self._memory[self._touched] = 0
        if sys.platform == "linux" and time.thread_time() - began > _SLOW_S:
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
            self._touched = None
        else:
            self._touched += _LARGE_PAGE

    def value(self) -> Value:
        """Return what has come: all of it, or a part, as it lies."""
        memory = self._memory
        if not self.came:
            return bytearray()
        if memory is None:
            assert self._file is not None
            with self._file:
                # The mapping keeps the file alive after it is closed. Writing to an
                # array copies the page and leaves the file alone.
                memory = self._memory = LargeValue(self._file.fileno(), self.came, access=mmap.ACCESS_COPY)
        if self.came < self.size:
            return memoryview(memory)[: self.came]
        memory.crc = self._crc
        return memory


_landings: weakref.WeakValueDictionary[int, Landing] = weakref.WeakValueDictionary()


def awaited(folder: str | None = None) -> int:
    """Return how many bytes are still to come to values that land in memory, or in that folder.

    The system counts neither as taken yet: each of ten values that come at once would find all of it free.
    """
    # Iterate over a copy, because the reader thread of each host may add a value meanwhile.
    landings = [each() for each in _landings.valuerefs()]
    return sum(each.size - each.came for each in landings if each is not None and each.folder == folder)


def _own_memory(size: int) -> LargeValue:
    """Reserve memory that a forked process does not share."""
    if sys.platform == "win32":
        return LargeValue(-1, size)
    return LargeValue(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _ask_for_large_pages(memory: LargeValue) -> bool:
    """Ask the system for large pages, which take less time; return whether it has them."""
    if sys.platform != "linux":
        return False
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        # Kernels that were built without large pages reject this.
        return False
    return True


def folder_for(size: int) -> str | None:
    """Return a folder on a disk with room for a file of that size; None if there is none."""
    for choose in (tempfile.gettempdir, lambda: _LARGE_FOLDER):
        try:
            folder = choose()
            free = shutil.disk_usage(folder).free - awaited(folder)
            if free > size + _SPARE and os.access(folder, os.W_OK) and not _is_in_memory(folder):
                return folder
        except OSError:
            # The folder may not exist, or Python may find no folder for temporary files at all.
            continue
    return None


def _is_in_memory(folder: str) -> bool:
    """Whether the file system of a folder keeps its files in memory, as /tmp often does on Linux."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        # Only Linux has this file. Elsewhere, assume that the folder is on a disk.
        return False
    path = os.path.realpath(folder)
    above = [(len(place), kind) for place, kind in mounts if path == place or path.startswith(place.rstrip("/") + "/")]
    return max(above, default=(0, ""))[1] in _IN_MEMORY
