"""One winner: claims and outcomes appear whole, once, and are never replaced.

link(2) of a finished temporary decides. Its return value is not believed, because over NFS a resent LINK answers EEXIST
although it won; the temporary's count of links is. Where links are refused, the rename of a folder that holds the file
decides: it fails when another's is there. Knows nothing of jobs.

What reads files that may not be there is here too.
"""

import errno
import os

# A function may replace the one of the module.
from time import sleep

from ..layout import DISK_ERRORS, ROOM_PAUSES_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, TypeVar

    T = TypeVar("T")

_REFUSED = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, errno.ENOSYS)
# Under a quota of btrfs, a file needs more than 64 KB of room to be created, written and linked.
_SPARE_BYTES = 131072
# Python makes it close-on-exec, and Windows has no word for that
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class Reserve:
    """A temporary whose space on the disk is taken early, so that an outcome can be published when it is full."""

    def __init__(self, folder: str) -> None:
        self.path = _aside(folder, "reserve")
        fd = os.open(self.path, _NEW, 0o600)
        try:
            # This writes zeros, because not every file system has fallocate.
            write_all(fd, b"\0" * _SPARE_BYTES)
        except OSError:
            # The space that was taken is needed to report that.
            _remove(self.path)
            raise
        finally:
            os.close(fd)

    def release(self) -> None:
        _remove(self.path)


def remove_reserves(folder: str) -> None:
    """Remove the reserves that processes have left in a folder."""
    for name in names_in(folder):
        if name.startswith(".reserve-"):
            _remove(os.path.join(folder, name))


def publish(
    folder: str, name: str, data: bytes, reserve: "Optional[Reserve]" = None, mode: int = 0o600, sync: bool = True
) -> bool:
    """Let `folder/name` hold `data` unless it exists already; True if and only if this call put it there.

    Args:
        mode: Who else may read it, before the umask.
        sync: Return only once both the data and the name are on the disk.

    Raises:
        OSError: It could neither be put there nor is it there.
    """
    temporary = _write_temporary(folder, name, data, reserve, mode, sync)
    try:
        won = _link(temporary, folder, name)
    finally:
        _remove(temporary)
    if sync:
        sync_folder(folder)
    return won


def replace(path: str, data: bytes, sync: bool = True, mode: int = 0o600) -> None:
    """Let `path` hold `data`, whole or not at all, even if other processes write it at the same time.

    Args:
        sync: Return only once both the data and the name are on the disk.
        mode: Who else may read it, before the umask.

    Raises:
        OSError: `path` is as it was before.
    """
    folder, name = os.path.split(path)
    temporary = _aside(folder, name)
    try:
        _write(temporary, data, _NEW, mode, sync)
        os.replace(temporary, path)
    except BaseException:
        # Ctrl-C must leave no temporary file either.
        _remove(temporary)
        raise
    if sync:
        sync_folder(folder)


def read(folder: str, name: str) -> "Optional[bytes]":
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return _complete(folder, name)


def names_in(folder: str) -> "list[str]":
    """Return the names in a folder; none if it is not there, or cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def numbers_in(folder: str) -> "list[int]":
    """Return the names in a folder that are numbers, in order; none if it is not there."""
    return sorted(int(name) for name in names_in(folder) if name.isdecimal())


def last_bytes(path: str, most: int = 16384) -> bytes:
    """Return the end of a file; nothing if it is not there, or cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read()
    except OSError:
        return b""


def is_there(folder: str, name: str) -> bool:
    """Whether it is there. NFS remembers for half a minute that a file was missing, unless its folder is listed."""
    return name in names_in(folder)


def sync_folder(folder: str) -> None:
    """Flush the names in a folder to the disk."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        # The folder was removed meanwhile.
        return
    try:
        os.fsync(fd)
    except OSError as error:
        # Some file systems cannot sync folders.
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(fd)


def _aside(folder: str, name: str) -> str:
    """A name that no other process takes, not even a later one with the same pid: what is left may be published."""
    return os.path.join(folder, ".%s-%s" % (name, os.urandom(8).hex()))


def _write_temporary(folder: str, name: str, data: bytes, reserve: "Optional[Reserve]", mode: int, sync: bool) -> str:
    if reserve is not None:
        try:
            # With a second link it is published already, and its own name could not be removed.
            if os.stat(reserve.path).st_nlink == 1:
                _write(reserve.path, data, os.O_WRONLY, mode, sync)
                return reserve.path
        except OSError:
            # It was removed with its folder, or holds less than is needed. The outcome is written without it.
            pass
        reserve.release()
    path = _aside(folder, name)
    try:
        _write(path, data, _NEW, mode, sync)
    except OSError:
        _remove(path)
        raise
    return path


def _write(path: str, data: bytes, flags: int, mode: int, sync: bool = True) -> None:
    fd = os.open(path, flags, mode)
    try:
        write_all(fd, data)
        os.ftruncate(fd, len(data))
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def once_there_is_room(act: "Callable[[], T]", waits: "Callable[[], None]" = lambda: None, always: bool = False) -> "T":
    """Return what `act` does; try again with pauses, for a minute, where the disk is full.

    Args:
        waits: Called before the first pause.
        always: Try again after any other error of the operating system, too.

    Raises:
        OSError: Of the last try.
    """
    for number, pause in enumerate(ROOM_PAUSES_S):
        try:
            return act()
        except OSError as error:
            if not always and error.errno not in DISK_ERRORS:
                raise
        if number == 0:
            waits()
        sleep(pause)
    return act()


def write_all(fd: int, data: bytes) -> None:
    """Write all of it: a disk that fills up takes a part first."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _link(temporary: str, folder: str, name: str) -> bool:
    target = os.path.join(folder, name)
    try:
        os.link(temporary, target)
    except OSError as error:
        if error.errno in _REFUSED and not os.path.lexists(target):
            return _rename(temporary, folder, name)
        if not os.path.lexists(target):
            raise
    return os.stat(temporary).st_nlink == 2


def _rename(temporary: str, folder: str, name: str) -> bool:
    own = temporary + ".d"
    won = os.path.join(folder, name + ".won")
    readable = os.stat(temporary).st_mode & 0o044
    os.mkdir(own, 0o700 | readable | readable >> 2)
    os.rename(temporary, os.path.join(own, name))
    number = os.stat(own).st_ino
    try:
        os.rename(own, won)
    except OSError:
        if not os.path.isdir(won):
            raise
    _complete(folder, name)
    mine = os.stat(won).st_ino == number
    if not mine:
        _remove(os.path.join(own, name))
        os.rmdir(own)
    return mine


def _complete(folder: str, name: str) -> "Optional[bytes]":
    """Where links are refused: give the winner's file its name, which the winner may have died before doing."""
    try:
        with open(os.path.join(folder, name + ".won", name), "rb") as file:
            data, mode = file.read(), os.fstat(file.fileno()).st_mode
    except OSError:
        return None
    replace(os.path.join(folder, name), data, mode=mode & 0o666)
    return data


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        # The file or its folder is gone already.
        return
