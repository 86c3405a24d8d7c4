"""Where a large value lands: in memory of its own, or in a file that is mapped if it does not fit into memory.

Arrays of the value use that memory as it is. It belongs to nothing else, so the system has it back as soon as the last
array is gone.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import sys
import tempfile
import zlib
from pathlib import Path
from typing import BinaryIO, Union

_SPARE = 1 << 30  # bytes that stay free on a disk
_IN_MEMORY = ("tmpfs", "ramfs")
_LARGE_FOLDER = "/var/tmp"  # where /tmp is in memory; the file there has no name


class LargeValue(mmap.mmap):
    """The bytes of a large value, which can be written to.

    Attributes:
        crc: CRC-32 of what follows its first line, taken as the bytes came; None if it was not.
    """

    crc: int | None = None


Value = Union[bytearray, LargeValue]


class Landing:
    """Takes the bytes of a value of known size as they come, and their checksum.

    Args:
        size: Bytes of all of it.
        folder: Where to keep it as a file without a name; None keeps it in memory.

    Attributes:
        came: Bytes that have come.
    """

    def __init__(self, size: int, folder: str | None = None) -> None:
        self.size = size
        self.came = 0
        self._crc: int | None = None  # None before the end of the first line
        self._file: BinaryIO | None = None
        self._memory: LargeValue | None = None
        if folder is None:
            self._memory = _own_memory(size)
        else:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="clusterfn-", buffering=0)  # noqa: SIM115 - closed below

    def take(self, piece: bytes) -> None:
        """Take the next bytes, of which there may not be more than its size."""
        if self._memory is not None:
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

    def value(self) -> Value:
        """Return what has come: all of it as it lies, or a copy of a part."""
        memory = self._memory
        if memory is None:
            assert self._file is not None
            with self._file:  # the mapping keeps it; who writes to an array writes to a copy of that page
                memory = self._memory = LargeValue(self._file.fileno(), self.came, access=mmap.ACCESS_COPY)
        if self.came < self.size:
            return bytearray(memory[: self.came])
        memory.crc = self._crc
        return memory


def _own_memory(size: int) -> LargeValue:
    """Reserve memory that a forked process does not share; in large pages, where the system has them."""
    if sys.platform == "win32":
        return LargeValue(-1, size)
    memory = LargeValue(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def folder_for(size: int) -> str | None:
    """Return a folder on a disk with room for a file of that size; None if there is none."""
    for folder in (tempfile.gettempdir(), _LARGE_FOLDER):
        try:
            if not _is_in_memory(folder) and shutil.disk_usage(folder).free > size + _SPARE:
                return folder
        except OSError:  # it is missing
            continue
    return None


def _is_in_memory(folder: str) -> bool:
    """Whether the file system of a folder keeps its files in memory, as /tmp often does on Linux."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:  # no Linux
        return False
    path = os.path.realpath(folder)
    above = [(len(place), kind) for place, kind in mounts if path == place or path.startswith(place.rstrip("/") + "/")]
    return max(above, default=(0, ""))[1] in _IN_MEMORY
