"""Whether what is to be unpacked fits, asked before anything is fetched.

A refusal must be right, so unknown sizes are taken from the low end of what was seen: for a wheel of CUDA libraries
1.6 times its archive, for conda packages 2.5 times, a file for each 100 KB. A disk that fills all the same is told
where it happens.
"""

import os
import zipfile

from ..supervisor.text import size
from . import quota
from .archives import zip_size
from .failure import ROOM, Failed
from .plan import WHEEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, Optional

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
    disk, (quota_bytes, quota_files) = os.statvfs(root), quota.left(root)
    free = disk.f_bavail * disk.f_frsize
    _refuse(root, "too little room", wanted_bytes, [(free, "are free"), (quota_bytes, "your quota leaves")], size)
    files = disk.f_favail if disk.f_files else None
    several = [(files, "may still be made"), (quota_files, "your quota leaves")]
    _refuse(root, "room for too few files", wanted_files, several, str)


def _refuse(
    root: str, what: str, wanted: int, limits: "list[tuple[Optional[int], str]]", shown: "Callable[[int], str]"
) -> None:
    for left, words in limits:
        if left is not None and wanted > left:
            numbers = "it needs at least %s, and %s" % (shown(wanted), _clause(shown(left), words))
            raise Failed("%s has %s: %s" % (root, what, numbers), stage="space", hint=ROOM)


def _clause(number: str, words: str) -> str:
    return "%s %s" % ((words, number) if words.endswith("leaves") else (number, words))
