"""Read, write, sync and match files; on a network file system ask the server, not the cache."""

import contextlib
import errno
import json
import os
import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Union

    from .frames import Header

CHUNK = 256 * 1024
SMALL = 4096
# A tree that contains this file is checked: it maps the name of each file to its size.
MANIFEST = "files.json"
_SYNCS_AT_ONCE = 16
# The checks of one tree take at most this share of the time.
CHECK_SHARE = 0.1
_STORED = ("blobs", "files", "sources", "shims", "bridge")


def existing_folder(path: str) -> str:
    """Return the nearest folder above `path` that exists."""
    folder = os.path.dirname(path) or "/"
    while folder != "/" and not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "/"
    return folder


def make_parent(path: str) -> None:
    """Create the folder of `path` and its parents."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)


def sync_path(path: str) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some file systems cannot sync a folder, and report one of these errors. Its names are as durable as can be.
        if error.errno not in (errno.EINVAL, errno.EBADF) or not os.path.isdir(path):
            raise
    finally:
        os.close(fd)


def sync_all(paths: "List[str]") -> None:
    """Flush them to the disk, several at once: a journal, or a file server, takes together those that wait."""
    # Only the child that flushes a tree needs this module, and importing it would slow down every agent's start.
    import threading

    remaining = list(paths)
    failed: "List[OSError]" = []

    def work() -> None:
        while remaining and not failed:
            try:
                sync_path(remaining.pop())
            except IndexError:
                # Another thread has taken the last file between the check and `pop`.
                return
            except OSError as error:
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(min(_SYNCS_AT_ONCE, len(remaining)) - 1)]
    started: "List[threading.Thread]" = []
    with contextlib.suppress(RuntimeError, MemoryError):
        # A login node may allow its users few threads (`ulimit -u`). The threads that did start do all the work then.
        for thread in threads:
            thread.start()
            started.append(thread)
    work()
    for thread in started:
        thread.join()
    if failed:
        raise failed[0]


def disk_left(path: str) -> "Dict[str, Optional[int]]":
    """Return what the file system of `path`, which need not exist yet, has: bytes in `free`, and inodes in `files`."""
    try:
        disk = os.statvfs(existing_folder(path))
    except OSError:
        return {"free": None, "files": None}
    # Some file systems do not count inodes.
    return {"free": disk.f_bavail * disk.f_frsize, "files": disk.f_favail if disk.f_files else None}


def read_at(path: str, offset: int, size: int = CHUNK) -> bytes:
    """Read bytes at an offset; none if the file is missing. Reopen it each time: on NFS only open() asks the server."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    try:
        # Most files that grow have few new bytes, and a large buffer takes longer than these.
        data = os.pread(fd, min(size, SMALL), offset)
        return data if len(data) < SMALL else os.pread(fd, size, offset)
    finally:
        os.close(fd)


def read_into(path: "Union[str, int]", offset: int, room: "memoryview") -> int:
    """Read bytes at an offset into a buffer; return how many. `path` is an open file, or one to reopen as `read_at`."""
    try:
        with open(path, "rb", buffering=0, closefd=isinstance(path, str)) as file:
            file.seek(offset)
            return file.readinto(room) or 0
    except (FileNotFoundError, NotADirectoryError):
        return 0


def size_of(path: str) -> int:
    """Return the size of a file; 0 if it is missing."""
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


# The errors of a file system whose server is away for a while: mounts with `soft`, FUSE, file handles from before a
# failover.
AWAY = (
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH,
    errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ESHUTDOWN,
)  # fmt: skip


def is_there(path: str) -> bool:
    """Whether `path` exists, as `os.path.exists`; raise OSError if the file server is away, and says neither."""
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in AWAY:
            raise
        return False
    except ValueError:
        return False
    return True


def exists(path: str, ask_server: bool) -> bool:
    """Whether `path` exists. NFS caches for half a minute that a file is missing, unless its folder is listed."""
    if ask_server and not os.path.lexists(path):
        try:
            os.listdir(os.path.dirname(path))
        except OSError:
            return False
    return os.path.lexists(path)


def is_missing(path: str) -> bool:
    """Whether the file system says that `path` does not exist; one that cannot be asked now does not say it."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def write_all(fd: int, data: "memoryview") -> None:
    """Write all of it: a disk that fills up takes a part first."""
    while len(data):
        data = data[os.write(fd, data) :]


def remove_tree(path: str) -> None:
    """Remove a folder as `rm -rf` does, ignoring what cannot be removed."""
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def record_use(path: str, root: str) -> None:
    """Set the time of something that is uploaded once for many jobs: what no client uses is removed later."""
    parts = os.path.relpath(path, root).split("/")
    if len(parts) > 1 and parts[0] in _STORED:
        with contextlib.suppress(OSError):
            # The path may be missing, or the file system read-only. The date only delays a later cleanup.
            os.utime(os.path.join(root, parts[0], parts[1]))


def glob_pattern(glob: str) -> "Any":
    """Compile a glob as pathlib reads it: `*` stays within one name, `**` is any number of folders."""
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|\[[^]/]+\]|.", glob, re.DOTALL)
    words = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(
        words.get(t) or (t.replace("[!", "[^") if t[0] == "[" and len(t) > 1 else re.escape(t)) for t in tokens
    )
    return re.compile("(?:%s)\\Z" % text, re.DOTALL)


class MissingPaths:
    """What one agent knows of what folders need beside them: the code, modules and buffers of a job."""

    def __init__(self) -> None:
        self.whole_until: "Dict[str, float]" = {}

    def lacking(self, header: "Header") -> "List[str]":
        """Return what of its `needs` is gone; a tree that is damaged is removed first."""
        whole = header.get("whole") or ()
        # The client sends absolute paths here, so they need no `expand`.
        needs = list(header.get("needs") or ())
        return [path for path in needs if not os.path.lexists(path) or (path in whole and self.is_damaged(path))]

    def is_damaged(self, path: str) -> bool:
        began = time.monotonic()
        if began < self.whole_until.get(path, 0.0):
            return False
        if is_whole(path):
            now = time.monotonic()
            self.whole_until[path] = now + (now - began) / CHECK_SHARE
            return False
        remove_damaged(path)
        return True


def remove_damaged(tree: str) -> None:
    """Remove a tree whose name a whole one gets next."""
    # The name is that of a part, because agents remove parts that were left behind.
    aside = "%s.part-%d-%d" % (tree, os.getpid(), int(time.monotonic() * 1e6))
    os.rename(tree, aside)
    remove_tree(aside)


def is_whole(tree: str) -> bool:
    """Whether each file of a tree that has a list of them is there, with its size."""
    try:
        with open(os.path.join(tree, MANIFEST), "rb") as file:
            files = json.loads(file.read().decode("utf-8"))
        return all(os.stat(os.path.join(tree, name)).st_size == size for name, size in files.items())
    except (OSError, ValueError):
        return False
