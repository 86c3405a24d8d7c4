"""Hold names on a machine: one process at a time has one, every user sees it, and it ends with its last holder.

`SocketLeases` binds abstract unix sockets, which also name their holder and wake those that wait for its end.
`FileLeases` locks files in /tmp, for jobs in network namespaces of their own, where abstract names are not seen.
`lease_names` says what the names mean.
"""

import _socket  # the C half alone: `socket` costs 4 ms to import
import contextlib
import errno
import fcntl
import os
import re
import stat
import struct
import time

from ..layout import ENVIRONMENT
from ..supervisor.verdict import Verdict
from . import lease_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Union

    Lease = Union["SocketLease", "FileLease"]
    Leases = Union["SocketLeases", "FileLeases"]

_PREFIX = "clusterfn/"
_LISTED = re.compile(rb" @clusterfn/([^\s@]+)\n")
_TABLE = "/proc/net/unix"
FOLDER = "/tmp"  # root's, and sticky: a folder that a user has made lets that user remove everything in it
_MARK = ".clusterfn-mark-"
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PEER = getattr(_socket, "SO_PEERCRED", 17)  # Linux's; elsewhere there are no marks
_TAKEN = (errno.EADDRINUSE, errno.EWOULDBLOCK, errno.EACCES)
_PLACES = 4096  # each that waits for the holder's end takes one, and keeps it until then
_LOCK_S = 5.0
_POLL_S = 0.002
_TRIES = 25  # a process that looks at a file locks it for a moment


def leases_of_kind(lease: str) -> "Leases":
    """Return the leases of a host with this `lease:`."""
    return FileLeases() if lease == "file" else SocketLeases()


class SocketLease:
    """A name held by a listening socket."""

    def __init__(self, socket: "_socket.socket") -> None:
        self._socket = socket

    def fileno(self) -> int:
        """What another process may inherit, to hold it too."""
        return self._socket.fileno()

    def touch(self) -> None:
        """Do nothing: such a name is never removed."""

    def answer(self) -> None:
        """Close the connections that wait for its end."""
        self._socket.setblocking(False)
        while True:
            try:
                fd, _ = self._socket._accept()  # type: ignore[attr-defined]
            except OSError:
                return
            os.close(fd)

    def close(self) -> None:
        """Release the name, as far as this process is concerned."""
        self._socket.close()


class FileLease:
    """A name held by a lock on a file that every user can open."""

    def __init__(self, fd: int, file: str = "") -> None:
        self._fd = fd
        self._file = file

    def fileno(self) -> int:
        """What another process may inherit, to hold it too."""
        return self._fd

    def touch(self) -> None:
        """Prevent its removal by programs that clean /tmp."""
        os.utime(self._fd)

    def answer(self) -> None:
        """Do nothing: a file cannot be woken by others."""

    def close(self) -> None:
        """Release the name, as far as this process is concerned; the last holder or its owner removes the file."""
        os.close(self._fd)
        if self._file:
            with contextlib.suppress(OSError, Verdict), _LeaseFolder() as folder:
                folder.is_held(self._file)


class LeaseHolder:
    """The holder of a name: who it is, and a connection that ends with the last process of theirs.

    Attributes:
        pid: Of the process that took or inherited the name last; 0 if it is in a container that is not seen from here.
        uid: Its user.
    """

    def __init__(self, socket: "_socket.socket", pid: int, uid: int) -> None:
        self.pid = pid
        self.uid = uid
        self._socket = socket

    def fileno(self) -> int:
        """Hangs up when they release their names."""
        return self._socket.fileno()

    def close(self) -> None:
        """Wait no longer."""
        self._socket.close()


class SocketLeases:
    """Names as abstract unix sockets."""

    def hold(self, name: str) -> "Optional[SocketLease]":
        """Hold a name; None if another process does."""
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            socket.bind(_address(name))
            socket.listen(_PLACES)
        except OSError as error:
            socket.close()
            if error.errno not in _TAKEN:
                raise
            return None
        return SocketLease(socket)

    def inherited(self, fd: int) -> SocketLease:
        """Resume a name that the process before this one held."""
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        socket.listen(_PLACES)  # from now on others see this process as the holder
        return SocketLease(socket)

    def names(self) -> "set[str]":
        """List all names that are held."""
        try:
            with open(_TABLE, "rb") as file:
                return {name.decode("ascii", "replace") for name in _LISTED.findall(file.read())}
        except (FileNotFoundError, PermissionError):  # a sandbox shows no table: one process still holds each name
            return set()

    def holder(self, name: str) -> "Optional[LeaseHolder]":
        """Return the holder of a name; None if it has gone, or too many wait for it."""
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        socket.setblocking(False)
        try:
            socket.connect(_address(name))
            raw = socket.getsockopt(_socket.SOL_SOCKET, _PEER, 12)
        except OSError:
            socket.close()
            return None
        return LeaseHolder(socket, *struct.unpack("3i", raw)[:2])


def _address(name: str) -> bytes:
    return b"\0" + (_PREFIX + name).encode()


class FileLeases:
    """Names as locked files. Holders are unknown and cannot wake others: a job that waits looks again.

    Each holder locks a file of its own, in a folder where only the owner of a file may remove it. It then checks that
    no other file of that name is locked. So no other user can take a mark away: they can only hold one, as by a socket.
    """

    def hold(self, name: str) -> "Optional[FileLease]":
        """Hold a name; None if another process does.

        Raises:
            Verdict: The folder lets others remove what is ours.
        """
        with _LeaseFolder() as folder:
            for _ in range(_TRIES):
                mark = folder.claim(name)
                if mark is not None:
                    return mark
                time.sleep(0.001 * (1 + os.urandom(1)[0] % 8))  # two that came together both release it
        return None

    def inherited(self, fd: int) -> FileLease:
        """Resume a name that the process before this one held."""
        return FileLease(fd)

    def names(self) -> "set[str]":
        """List all names that are held; remove files of ours that are no longer held.

        Raises:
            Verdict: The folder lets others remove what is ours.
        """
        with _LeaseFolder() as folder:
            return {name for name, file in folder.files() if folder.is_held(file)}

    def holder(self, _name: str) -> None:
        """Return None: files do not say."""
        return


class _LeaseFolder:
    """The folder of the files, open."""

    def __enter__(self) -> "_LeaseFolder":
        from ..agent.trusted import Trusted, user_name  # most hosts have `lease: socket`

        self._fd = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        found, trusted = os.fstat(self._fd), Trusted()
        if not trusted.owns(found) or trusted.writes(found) and not found.st_mode & stat.S_ISVTX:
            os.close(self._fd)
            raise Verdict(
                ENVIRONMENT,
                "`lease: file` cannot keep GPUs apart: other users may remove files in %s, which belongs to %s"
                % (FOLDER, user_name(found.st_uid)),
                stage="lease", hint="ask the administrator for `chown root %s; chmod 1777 %s`" % (FOLDER, FOLDER),
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def files(self) -> "list[tuple[str, str]]":
        """List the name that each file is for, and the file."""
        found = [file for file in os.listdir(self._fd) if file.startswith(_MARK)]
        return [(file[len(_MARK) :].rpartition("-")[0].replace(":", "/"), file) for file in found]

    def claim(self, name: str) -> "Optional[FileLease]":
        """Try once to hold a name; None if another holds it, tries just now, or has looked at the file in between."""
        own = "%s%s-%s" % (_MARK, name.replace("/", ":"), os.urandom(8).hex())
        fd = os.open(own, _LOOK | os.O_CREAT | os.O_EXCL, 0o444, dir_fd=self._fd)
        held = False
        try:
            os.fchmod(fd, 0o444)  # whatever the umask is
            held = lock_file(fd, fcntl.LOCK_EX) and self._is_at(fd, own)
            held = held and not any(self.is_held(file) for other, file in self.files() if other == name and file != own)
        finally:
            if not held:
                self._remove(fd, own)
                os.close(fd)
        return FileLease(fd, own) if held else None

    def is_held(self, file: str) -> bool:
        """Return whether a file is held; remove one that is ours and is not."""
        try:
            fd = os.open(file, _LOOK, dir_fd=self._fd)
        except OSError:  # gone meanwhile, or none of those that are made here
            return False
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return False
            if not lock_file(fd, fcntl.LOCK_SH):
                return True
            self._remove(fd, file)
        finally:
            os.close(fd)
        return False

    def _is_at(self, fd: int, file: str) -> bool:
        # A process that listed the files may have removed it.
        try:
            there = os.stat(file, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(fd), there)

    def _remove(self, fd: int, file: str) -> None:
        # Only an empty file of ours, which no other user can replace.
        found = os.fstat(fd)
        if found.st_uid == os.geteuid() and found.st_size == 0 and self._is_at(fd, file):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file, dir_fd=self._fd)


def lock_file(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    return True


def admission_lock(marks: "Leases") -> "Optional[Lease]":
    """Hold the lock once it is free; None if another process keeps it for ever: the names alone decide then."""
    until = time.monotonic() + _LOCK_S
    while True:
        lock = marks.hold(lease_names.ADMISSION)
        if lock is not None or time.monotonic() > until:
            return lock
        time.sleep(_POLL_S)
