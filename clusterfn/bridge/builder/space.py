"""Check, before anything is fetched, that what is to be unpacked fits on the disk and into the user's quota.

A rejection must be right, so unknown sizes are estimated low. A wheel of CUDA libraries unpacks to 1.6 times its
archive. A conda package unpacks to 2.5 times, with a file for each 100 KB. A disk that fills up all the same is
reported where that happens. The quota is what `quota` or `lfs quota` prints; without either none is known.
"""

import os
import pwd
import subprocess
import zipfile

from ..supervisor.text import size
from .archives import unpacked_zip_size
from .errors import ROOM, BuildFailed
from .plan import WHEEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, Optional

    from .plan import PlannedPackage

    Left = tuple[Optional[int], Optional[int]]

_UNPACKED_WHEEL, _UNPACKED_CONDA = 1.6, 2.5
_BYTES_A_FILE = 100000
_PATIENCE_S = 10.0
MOUNTS = "/proc/mounts"


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
    """Raise if the disk or the quota has too little space; name both numbers."""
    wanted_bytes, wanted_files = [sum(each) for each in zip((0, 0), *needs)]
    disk, (quota_bytes, quota_files) = os.statvfs(root), quota_left(root)
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
            clause = "%s %s" % ((words, shown(left)) if words.endswith("leaves") else (shown(left), words))
            numbers = "it needs at least %s, and %s" % (shown(wanted), clause)
            raise BuildFailed("%s has %s: %s" % (root, what, numbers), stage="space", hint=ROOM)


def quota_left(root: str) -> "Left":
    """Return how many bytes and files may still be written below `root`; None where no quota is known."""
    device, mount, kind = mount_of(root)
    if kind == "lustre":
        return parse_quota(
            _run_quota(["lfs", "quota", "-q", "-u", pwd.getpwuid(os.geteuid()).pw_name, mount]), (device, mount)
        )
    return parse_quota(_run_quota(["quota", "-w", "-p"]), (device, mount))


def parse_quota(said: str, names: "tuple[str, ...]") -> "Left":
    """Read the row of that file system: kilobytes, soft and hard limit, grace; then the same for files."""
    for line in said.splitlines():
        words = line.split()
        if len(words) >= 8 and words[0] in names:
            files = words[5:] if not words[4].isdecimal() or len(words) >= 9 else words[4:]
            return _rest(words[1:4], 1024), _rest(files[:3], 1)
    return None, None


def _rest(numbers: "list[str]", unit: int) -> "Optional[int]":
    """Return what is left below the hard limit, or below the soft one if there is no other."""
    try:
        used, soft, hard = (int(number.rstrip("*")) for number in numbers)
    except ValueError:
        return None
    limit = hard or soft
    return max(0, limit - used) * unit if limit else None


def mount_of(path: str) -> "tuple[str, str, str]":
    """Return device, mount point and kind of the file system that holds a path."""
    path, found = os.path.realpath(path), ("", "/", "")
    try:
        with open(MOUNTS, errors="replace") as file:
            rows = [line.split()[:3] for line in file]
    except OSError:
        return found
    for device, mount, kind in (row for row in rows if len(row) == 3):
        mount = mount.replace("\\040", " ")
        if (path + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= len(found[1]):
            found = (device, mount, kind)
    return found


def _run_quota(argv: "list[str]") -> str:
    try:
        ran = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.decode("utf-8", "replace")
