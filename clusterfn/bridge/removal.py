"""Judge by its date what may go, and remove it: jobs, what is sent once for many of them, environments and packages.

What goes is given a hidden name beside its place, and looked at again there: it is put back if a job or a builder
needs it by then. Then it gets the name of what is being removed. Any process may finish that, and takes no half for
the whole.
"""

import contextlib
import os
import shutil
import stat
import time

from .layout import ASIDE, REMOVED
from .supervisor.verdict import log_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Optional

DAY_S = 86400.0
# A client starts a job soon after it has sent it. A folder that was not started for a day was left by one that ended.
STARTS_S = DAY_S
# A client checks again after an hour that the host still has what it relies on.
RELIED_S = 2 * 3600.0
# A download may be continued for this long.
PART_S = 7 * DAY_S

_PRIVATE_MODE = 0o700
_OTHERS_WRITE = 0o022
_COUNTED = ("count", "bytes", "gone", "freed")


class CleanupReport:
    """What there is, and what of it goes.

    Attributes:
        summary: For each kind `count` and `bytes` of all, and `gone` and `freed` of what is removed. `waiting` has the
            ids of the jobs that wait or run. `recent` counts things that stay only because a client may still rely on
            them.
    """

    def __init__(self, dry: bool, measure: bool) -> None:
        self.summary: "dict[str, Any]" = {"kinds": {}, "waiting": [], "recent": 0}
        self.dry = dry
        self._measure = measure

    def counts(self, kind: str) -> "dict[str, int]":
        """Return what is counted of a kind."""
        counts: "dict[str, int]" = self.summary["kinds"].setdefault(kind, dict.fromkeys(_COUNTED, 0))
        return counts

    def add(self, kind: str, path: str, goes: bool, unused_since: "Optional[float]" = None) -> None:
        """Count one, and remove it if it goes and, where that is a condition, is still unused since then."""
        counts = self.counts(kind)
        size = size_of(path) if self._measure else 0
        counts["count"] += 1
        counts["bytes"] += size
        if goes and (self.dry or try_remove(path, unused_since)):
            counts["gone"] += 1
            counts["freed"] += size


def date_of(path: str) -> "Optional[float]":
    """Return when a file or a folder, or a link itself, was changed last; None if it is gone."""
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return None


def is_due(date: "Optional[float]", kept_s: float, when: "Optional[float]" = None) -> bool:
    """Whether what has this date is kept no longer. What has none, or one of the future, is kept.

    Args:
        when: The time by which it is judged; now if it is not given.
    """
    return date is not None and (time.time() if when is None else when) - date > kept_s


def paths_in(folder: str) -> "list[str]":
    """Return the paths of what is in a folder, in order; none if there is no folder."""
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))] if os.path.isdir(folder) else []


def files_below(folder: str, prefix: str = "") -> "Iterator[tuple[str, os.stat_result]]":
    """Yield the path of each file below a folder, and what `lstat` says of it."""
    try:
        with os.scandir(folder) as entries:
            entries_below = list(entries)
    except OSError:
        # The folder is gone meanwhile, or this user may not read it.
        return
    for entry in entries_below:
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(entry.path, prefix + entry.name + "/")
            continue
        with contextlib.suppress(FileNotFoundError):
            yield prefix + entry.name, entry.stat(follow_symlinks=False)


def size_of(path: str, most_names: "Optional[int]" = None) -> int:
    """Return the bytes of a file, or of all files in a folder; without those that have more names, if it is given."""
    try:
        top = os.lstat(path)
    except OSError:
        # The file is gone meanwhile.
        return 0
    stats = (status for _, status in files_below(path)) if stat.S_ISDIR(top.st_mode) else iter([top])
    return sum(status.st_size for status in stats if most_names is None or status.st_nlink <= most_names)


def move_aside(path: str, token: str = "", is_needed: "Optional[Callable[[str], bool]]" = None) -> str:
    """Hide what is to be removed, so that a half of it is not taken for the whole; look again whether it is needed.

    Args:
        token: Names this process. A name that holds it is used once.
        is_needed: Gets the hidden name.

    Returns:
        What is now to be removed; "" if it is needed, and back in its place.

    Raises:
        OSError: It is gone, or may not be renamed.
    """
    folder, name = os.path.split(path)
    end = "%s-%s" % (name, token or os.urandom(4).hex())
    aside, removed = os.path.join(folder, ASIDE + end), os.path.join(folder, REMOVED + end)
    if is_needed is None:
        os.rename(path, removed)
        return removed
    os.rename(path, aside)
    if is_needed(aside) and not os.path.lexists(path):
        os.rename(aside, path)
        return ""
    os.rename(aside, removed)
    return removed


def remove(path: str) -> None:
    """Remove all it can of an absolute path, read-only parts too; raise OSError if something stays."""
    if not os.path.isdir(path) or os.path.islink(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    # Where others may write, another user could put a link in the way while the modes are changed.
    if not os.stat(os.path.dirname(path)).st_mode & _OTHERS_WRITE:
        _make_writable(path)
        for folder, names, _ in os.walk(path):
            for below in (os.path.join(folder, name) for name in names):
                if not os.path.islink(below):
                    _make_writable(below)
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        # The first pass ignores errors so that all else goes; this one raises the error for what is left.
        shutil.rmtree(path)


def try_remove(path: str, unused_since: "Optional[float]" = None) -> bool:
    """Remove something, unless a client has dated it meanwhile; False if it stays, or could not be removed."""
    is_dated = None if unused_since is None else lambda aside: not is_due(date_of(aside), 0.0, unused_since)
    try:
        aside = move_aside(path, is_needed=is_dated)
        if aside:
            remove(aside)
    except OSError as error:
        log_line("%s could not be removed: %s" % (path, error))
        return False
    return bool(aside)


def sweep(folder: str, is_left: "Callable[[str], bool]") -> None:
    """Remove what is in a folder and was left there by a process that is gone."""
    for path in filter(is_left, paths_in(folder)):
        with contextlib.suppress(OSError):
            # Another process is removing it too, or it belongs to another user.
            remove(path)


def _make_writable(folder: str) -> None:
    with contextlib.suppress(OSError):
        # The folder belongs to another user or is gone. The removal itself reports what matters.
        os.chmod(folder, _PRIVATE_MODE)
