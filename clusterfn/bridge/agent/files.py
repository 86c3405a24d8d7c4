"""Files as the operating system has them: pieces, folders, and what a network file system forgets."""

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

CHUNK = 256 * 1024


def existing_folder(path: str) -> str:
    """The nearest folder above `path` that exists."""
    folder = os.path.dirname(path) or "/"
    while folder != "/" and not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "/"
    return folder


def make_parent(path: str) -> None:
    """The folder of `path`, and those above it."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)


def sync_folder(path: str) -> None:
    """Bring the names in a folder to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):  # a file system that cannot sync folders
            raise
    finally:
        os.close(fd)


def free_bytes(path: str) -> "Optional[int]":
    """What is left on the file system of the nearest folder that exists."""
    try:
        disk = os.statvfs(existing_folder(path))
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def read_at(path: str, offset: int, size: int = CHUNK) -> bytes:
    """Bytes at an offset, none if there is no such file. Opened anew each time: on NFS only open() asks the server."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    try:
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)


def size_of(path: str) -> int:
    """Bytes of a file; 0 if there is none."""
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def exists(path: str, ask_server: bool) -> bool:
    """Whether `path` is there. NFS remembers for half a minute that a file was missing, unless its folder is listed."""
    if ask_server and not os.path.lexists(path):
        try:
            os.listdir(os.path.dirname(path))
        except OSError:
            return False
    return os.path.lexists(path)


def write_all(fd: int, data: "memoryview") -> None:
    """All of it: a disk that fills takes a part first."""
    while len(data):
        data = data[os.write(fd, data) :]


def remove_tree(path: str) -> None:
    """As `rm -rf`: what cannot be removed is left."""
    import shutil

    shutil.rmtree(path, ignore_errors=True)
