"""Check, before anything is fetched, that what is to be unpacked fits on the disk.

A rejection must be right, so unknown sizes are estimated low. A wheel of CUDA libraries unpacks to 1.6 times its
archive. A conda package unpacks to 2.5 times, with a file for each 250 KB. A disk that fills up all the same, or a
quota, is reported where that happens.
"""

import os
import zipfile

from ..supervisor.text import format_size
from .archives import unpacked_zip_size
from .errors import ROOM, BuildFailed
from .plan import WHEEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional

    from .plan import PlannedPackage

_UNPACKED_WHEEL, _UNPACKED_CONDA = 1.6, 2.5
_BYTES_A_FILE = 250000  # PyTorch for CUDA has 3.9 GB in 16 300 files, and others have smaller ones


def space_needed(package: "PlannedPackage", archive: "Optional[str]") -> "tuple[int, int]":
    """Return how many bytes and files a package takes at least: unpacked, and its archive if that is missing."""
    if archive is not None and package.kind == WHEEL:
        try:
            return unpacked_zip_size(archive)
        except (OSError, zipfile.BadZipFile):  # it is damaged: its hash will show that
            return 0, 0
    there = os.stat(archive).st_size if archive is not None else 0
    total = there or package.size
    unpacked = int(total * (_UNPACKED_WHEEL if package.kind == WHEEL else _UNPACKED_CONDA))
    return unpacked + total - there, total // _BYTES_A_FILE


def refuse_too_little(root: str, needs: "Iterable[tuple[int, int]]") -> None:
    """Raise if the disk has too little space; name both numbers."""
    wanted_bytes, wanted_files = [sum(each) for each in zip((0, 0), *needs)]
    disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize
    told = ""
    if wanted_bytes > free:
        told = "too little room: it needs at least %s, and %s are free" % (format_size(wanted_bytes), format_size(free))
    elif disk.f_files and wanted_files > disk.f_favail:
        told = "room for too few files: it needs at least %d, and %d may still be made" % (wanted_files, disk.f_favail)
    if told:
        raise BuildFailed("%s has %s" % (root, told), stage="space", hint=ROOM)
