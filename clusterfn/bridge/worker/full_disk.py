"""Say which file system was full when the function could not write: most errors of a full disk name no file."""

from __future__ import annotations

import errno
import os
import sys
from typing import NamedTuple

from ..layout import DISK_ERRORS
from ..supervisor.text import format_size


class _Disk(NamedTuple):
    """A file system, by a folder of it: what that is to the function, and what we may still write and make there."""

    what: str
    folder: str
    free: int
    # None where files are not counted.
    files: int | None
    total: int


def describe(error: BaseException) -> str | None:
    """Return a sentence about a disk that took nothing more from the function; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in DISK_ERRORS:
        return None
    said = "the function could not write: %s" % (error.strerror or os.strerror(error.errno or 0))
    disks = [disk for what, path in _folders(error) if (disk := _disk(what, path)) is not None]
    if not disks:
        return said
    fullest = disks[0] if isinstance(error.filename, (str, bytes)) else min(disks, key=_left)
    files = ", and no more files" if fullest.files == 0 else ""
    quota = "; a quota may be lower" if error.errno == errno.EDQUOT else ""
    return "%s; %s has %s of %s free%s%s: %s" % (
        said, _mount_point(fullest.folder), format_size(fullest.free), format_size(fullest.total), files, quota,
        fullest.what,
    )  # fmt: skip


def _folders(error: OSError) -> list[tuple[str, str]]:
    """List where the function may have written, each with what it is; first the file that the error names."""
    named = error.filename
    if isinstance(named, (str, bytes)):
        path = os.fsdecode(named)
        return [("the file system of %s" % path, os.path.dirname(os.path.abspath(path)))]
    places = [("the working folder", "."), ("the folder of temporary files", _temporary_folder())]
    return [*places, ("the home folder", os.path.expanduser("~")), ("shared memory", "/dev/shm")]


def _temporary_folder() -> str:
    """Return what `tempfile` has found, if the function used it; else where it looks first. To load it takes 3 ms."""
    found = getattr(sys.modules.get("tempfile"), "tempdir", None)
    named = map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))
    return os.fsdecode(found) if found else next((path for path in named if path and os.path.isdir(path)), "/tmp")


def _disk(what: str, path: str) -> _Disk | None:
    try:
        path = os.path.realpath(path)
        facts = os.statvfs(path)
    except OSError:
        # The folder is gone, or there is none.
        return None
    files = facts.f_favail if facts.f_files else None
    return _Disk("%s, %s" % (what, path), path, facts.f_bavail * facts.f_frsize, files, facts.f_blocks * facts.f_frsize)


def _left(disk: _Disk) -> float:
    return 0.0 if disk.files == 0 else disk.free / max(disk.total, 1)


def _mount_point(path: str) -> str:
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path
