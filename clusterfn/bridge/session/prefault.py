"""Copy the memory that calls write to before a call comes, while its process waits.

After a fork, parent and child share their memory, and the first write of either to a page copies that page. A short
call writes to hundreds of pages, most of them the interpreter's own, which takes a quarter of its time. They are the
same in each call. So one call says which they were, and later processes copy them at once.

Linux can do so from version 5.14 on. Before that, each page is copied when the call writes to it.
"""

from __future__ import annotations

import array
import os
import select
from typing import Any, List, Tuple

from ..agent.libc import libc_function, pointer_type

# Addresses and lengths are in bytes, and both are whole pages.
Ranges = List[Tuple[int, int]]

# The function may replace the built-in one.
_open = open
_PAGE = os.sysconf("SC_PAGE_SIZE")
# /proc/self/pagemap has so many bytes for each page.
_ENTRY = 8
_KIND, _OWN = 0xA1, 0x81  # of an entry's highest byte: present, and mapped by no other process; and of no file
# Copying so many pages between two ranges is faster than a further system call.
_GAP = 4
# An interpreter writes to less. What is beyond it are the data of one call.
_MOST_BYTES = 16 << 20
_LARGEST_MAPPING = 64 << 20
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE
# The next call of a loop comes sooner than that.
_IDLE_MS = 2.0


def own_ranges() -> Ranges:
    """Return the memory that this process shares with no other, because it or its parent has written there."""
    found: Ranges = []
    try:
        with _open("/proc/self/pagemap", "rb", buffering=0) as pages, _open("/proc/self/maps") as maps:
            for line in maps:
                bounds, access = line.split(" ", 2)[:2]
                begin, end = (int(part, 16) for part in bounds.split("-"))
                if access == "rw-p" and end - begin <= _LARGEST_MAPPING:
                    pages.seek(begin // _PAGE * _ENTRY)
                    found += _own(begin, pages.read((end - begin) // _PAGE * _ENTRY))
    except OSError:
        # The system is not Linux, or the file may not be read.
        return []
    return found


def _own(begin: int, data: bytes) -> Ranges:
    """Return which pages of a mapping are this process's own, given their entries in pagemap."""
    entries = array.array("Q", data)
    found: list[list[int]] = []
    for page in (number for number, entry in enumerate(entries) if entry >> 56 & _KIND == _OWN):
        if found and page - found[-1][1] <= _GAP:
            found[-1][1] = page + 1
        else:
            found.append([page, page + 1])
    return [(begin + first * _PAGE, (last - first) * _PAGE) for first, last in found]


def read_ranges(said: Any) -> Ranges:
    """Return what a call has reported; nothing if that is no list of ranges, since a function can write there too."""
    try:
        found = [(begin, length) for begin, length in said]
    except (TypeError, ValueError):
        return []
    are_pages = all(type(each) is int and each > 0 and each % _PAGE == 0 for pair in found for each in pair)
    return found if are_pages and sum(length for _, length in found) <= _MOST_BYTES else []


def copy_when_idle(fd: int, ranges: Ranges | None) -> None:
    """Wait for something to read, and copy this memory if it takes longer than the next call of a loop does."""
    if not ranges:
        return
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(_IDLE_MS):
        try:
            madvise, pointer = libc_function("madvise"), pointer_type()
        except (ImportError, OSError, AttributeError):
            # This Python lacks it, and the calls copy their memory.
            return
        for begin, length in ranges:
            # What cannot be copied now is left to the call.
            madvise(pointer(begin), pointer(length), _POPULATE_WRITE)
