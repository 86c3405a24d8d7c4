"""What the user's own quota leaves on a file system, as `quota` or `lfs quota` says it; nothing where neither does."""

import os
import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    Left = tuple[Optional[int], Optional[int]]

_PATIENCE_S = 10.0
_MOUNTS = "/proc/mounts"
_NONE = (None, None)


def left(root: str) -> "Left":
    """Bytes and files that may still be written below `root`; None where no quota is known."""
    device, mount, kind = _mounted(root)
    if kind == "lustre":
        return parse(_ask(["lfs", "quota", "-q", "-u", _user(), mount]), (device, mount))
    return parse(_ask(["quota", "-w", "-p"]), (device, mount))


def parse(said: str, names: "tuple[str, ...]") -> "Left":
    """From the row of that file system: kilobytes, soft and hard limit, grace; files, and the same of them."""
    for line in said.splitlines():
        words = line.split()
        if len(words) >= 8 and words[0] in names:
            files = words[5:] if not words[4].isdecimal() or len(words) >= 9 else words[4:]
            return _rest(words[1:4], 1024), _rest(files[:3], 1)
    return _NONE


def _rest(numbers: "list[str]", unit: int) -> "Optional[int]":
    """What is left below the hard limit, or the soft one where there is no other."""
    try:
        used, soft, hard = (int(number.rstrip("*")) for number in numbers)
    except ValueError:
        return None
    limit = hard or soft
    return max(0, limit - used) * unit if limit else None


def _mounted(path: str) -> "tuple[str, str, str]":
    """Device, mount point and kind of the file system that holds a path."""
    path, found = os.path.realpath(path), ("", "/", "")
    try:
        with open(_MOUNTS, errors="replace") as file:
            rows = [line.split()[:3] for line in file]
    except OSError:
        return found
    for device, mount, kind in (row for row in rows if len(row) == 3):
        mount = mount.replace("\\040", " ")
        if (path + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= len(found[1]):
            found = (device, mount, kind)
    return found


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def _ask(argv: "list[str]") -> str:
    try:
        ran = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PATIENCE_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.decode("utf-8", "replace")
