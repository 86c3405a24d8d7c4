"""Whether what is to be unpacked fits, asked before anything is fetched.

A refusal must be right, so unknown sizes are taken from the low end of what was seen: for a wheel of CUDA libraries
1.6 times its archive, for conda packages 2.5 times, a file for each 100 KB. A disk that fills all the same is told
where it happens. Called by `packages`.
"""

import os
import zipfile

from ..supervisor.text import size
from .archives import zip_size
from .failure import ROOM, Failed
from .plan import WHEEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional

    from .plan import Package

_UNPACKED = {WHEEL: 1.6}
_UNPACKED_CONDA = 2.5
_BYTES_A_FILE = 100000


def needed(package: "Package", archive: "Optional[str]") -> "tuple[int, int]":
    """At least so many bytes and files does a package take: unpacked, and its archive if that is still to come.

    Args:
        package: What is not unpacked yet.
        archive: Its archive, if it is there.
    """
    if archive is not None and package.kind == WHEEL:
        try:
            return zip_size(archive)
        except (OSError, zipfile.BadZipFile):  # its hash will tell
            return 0, 0
    there = os.stat(archive).st_size if archive is not None else 0
    total = there or package.size
    unpacked = int(total * _UNPACKED.get(package.kind, _UNPACKED_CONDA))
    return unpacked + total - there, total // _BYTES_A_FILE


def check(root: str, needs: "Iterable[tuple[int, int]]") -> None:
    """Refuse what does not fit, naming both numbers."""
    wanted_bytes, wanted_files = [sum(each) for each in zip((0, 0), *needs)]
    disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize
    if wanted_bytes > free:
        numbers = "it needs at least %s, and %s are free" % (size(wanted_bytes), size(free))
        raise Failed("%s has too little room: %s" % (root, numbers), stage="space", hint=ROOM)
    if disk.f_files and wanted_files > disk.f_favail:
        numbers = "it needs at least %d, and %d may still be made" % (wanted_files, disk.f_favail)
        raise Failed("%s has room for too few files: %s" % (root, numbers), stage="space", hint=ROOM)
