"""Marks: names that one process at a time can hold on a machine, seen by every user and gone with the last holder.

`Sockets` binds abstract unix sockets, which also tell who holds one and wake who waits for it. `Files` locks files in
/tmp, for jobs in network namespaces of their own, where abstract names are not seen. Knows nothing of what the names
mean (`names` does). Called by `admission`, `cards` and `spool`.
"""

import _socket  # the C half alone: `socket` costs 4 ms to import
import errno
import fcntl
import os
import re
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Union

    Mark = Union["SocketMark", "FileMark"]
    Marks = Union["Sockets", "Files"]

_PREFIX = "clusterfn/"
_LISTED = re.compile(rb" @clusterfn/([^\s@]+)\n")
_TABLE = "/proc/net/unix"
_FOLDER = "/tmp/clusterfn-marks"
_PEER = getattr(_socket, "SO_PEERCRED", 17)  # Linux's; elsewhere there are no marks
_TAKEN = (errno.EADDRINUSE, errno.EWOULDBLOCK, errno.EACCES)
_PLACES = 4096  # whoever waits for the holder's end takes one, and nobody gives it back before
_TRIES = 25  # whoever lists files holds each of them for a moment


def of(lease: str) -> "Marks":
    """The marks of a host with this `lease:`."""
    return Files() if lease == "file" else Sockets()


class SocketMark:
    """A name held by a listening socket."""

    def __init__(self, socket: "_socket.socket") -> None:
        self._socket = socket

    def fileno(self) -> int:
        """What another process may inherit, to hold it too."""
        return self._socket.fileno()

    def answer(self) -> None:
        """Let go whoever knocked."""
        self._socket.setblocking(False)
        while True:
            try:
                fd, _ = self._socket._accept()  # type: ignore[attr-defined]
            except OSError:
                return
            os.close(fd)

    def close(self) -> None:
        """Let go, as far as this process is concerned."""
        self._socket.close()


class FileMark:
    """A name held by a lock on a file that every user can open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """What another process may inherit, to hold it too."""
        return self._fd

    def answer(self) -> None:
        """Nobody can knock."""

    def close(self) -> None:
        """Let go, as far as this process is concerned; the file stays until its owner lists the names."""
        os.close(self._fd)


class Holder:
    """Whoever holds a name now: who it is, and a connection that ends with the last process of theirs.

    Attributes:
        pid: Of the process that took or inherited the name last; 0 if it is in a container that is not seen from here.
        uid: Its user.
    """

    def __init__(self, socket: "_socket.socket", pid: int, uid: int) -> None:
        self.pid = pid
        self.uid = uid
        self._socket = socket

    def fileno(self) -> int:
        """Hangs up when they let go."""
        return self._socket.fileno()

    def close(self) -> None:
        """Wait no longer."""
        self._socket.close()


class Sockets:
    """Names as abstract unix sockets."""

    def hold(self, name: str) -> "Optional[SocketMark]":
        """Hold a name; None if somebody does."""
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            socket.bind(_address(name))
            socket.listen(_PLACES)
        except OSError as error:
            socket.close()
            if error.errno not in _TAKEN:
                raise
            return None
        return SocketMark(socket)

    def inherited(self, fd: int) -> SocketMark:
        """A name that the process before this one held."""
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        socket.listen(_PLACES)  # whoever asks for the holder is told of this process from now on
        return SocketMark(socket)

    def names(self) -> "set[str]":
        """All that are held."""
        try:
            with open(_TABLE, "rb") as file:
                return {name.decode("ascii", "replace") for name in _LISTED.findall(file.read())}
        except (
            FileNotFoundError,
            PermissionError,
        ):  # a sandbox that shows no table: each name is still held by one alone
            return set()

    def holder(self, name: str) -> "Optional[Holder]":
        """Whoever holds it; None if nobody does any more, or too many wait at the door."""
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        socket.setblocking(False)
        try:
            socket.connect(_address(name))
            raw = socket.getsockopt(_socket.SOL_SOCKET, _PEER, 12)
        except OSError:
            socket.close()
            return None
        return Holder(socket, *struct.unpack("3i", raw)[:2])


def _address(name: str) -> bytes:
    return b"\0" + (_PREFIX + name).encode()


class Files:
    """Names as locked files. Nobody can be told apart or woken: who waits looks again."""

    def hold(self, name: str) -> "Optional[FileMark]":
        """Hold a name; None if somebody does."""
        path = _path(name)
        for _ in range(_TRIES):
            fd = _open_shared(path)
            if _lock(fd) and _is_at(fd, path):
                return FileMark(fd)
            os.close(fd)
            time.sleep(0.002)
        return None

    def inherited(self, fd: int) -> FileMark:
        """A name that the process before this one held."""
        return FileMark(fd)

    def names(self) -> "set[str]":
        """All that are held; files that nobody holds any more and that are ours are removed."""
        names = os.listdir(_FOLDER) if os.path.isdir(_FOLDER) else []
        return {name.replace(":", "/") for name in names if _is_held(os.path.join(_FOLDER, name))}

    def holder(self, _name: str) -> None:
        """Files do not say."""
        return


def _path(name: str) -> str:
    return os.path.join(_FOLDER, name.replace("/", ":"))


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    return True


def _is_at(fd: int, path: str) -> bool:
    """Whether the file has its name still: who listed may have removed it."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.fstat(fd).st_ino == there.st_ino


def _is_held(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # gone meanwhile
        return False
    try:
        if not _lock(fd):
            return True
        if os.fstat(fd).st_uid == os.getuid():
            os.unlink(path)
    except FileNotFoundError:
        return False
    finally:
        os.close(fd)
    return False


def _open_shared(path: str) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        before = os.umask(0)
        try:
            os.makedirs(_FOLDER, mode=0o1777, exist_ok=True)
            return os.open(path, flags | os.O_CREAT, 0o444)
        finally:
            os.umask(before)
