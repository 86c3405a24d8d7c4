"""Hold names on a machine: one process at a time has one, every user sees it, and it ends with its last holder.

`SocketLeases` binds abstract unix sockets, which also name their holder and wake those that wait for its end.
`FileLeases` locks files in /tmp, for jobs in network namespaces of their own, where abstract names are not seen.
`lease_names` says what the names mean.
"""

# The C half of `socket` alone, because the whole module takes 4 ms to import.
import _socket
import contextlib
import errno
import fcntl
import os
import stat
import struct
import time

from ..layout import ENVIRONMENT
from ..supervisor.process_tree import user_name
from ..supervisor.verdict import AttemptEnded, Verdict, say
from . import lease_names, socket_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List, Optional, Tuple, Union

    Lease = Union["SocketLease", "FileLease"]
    Leases = Union["SocketLeases", "FileLeases"]

_PREFIX = "clusterfn/"
# This folder belongs to root and is sticky. In a user's folder, that user could remove the files of all others.
FOLDER = "/tmp"
_FILE_PREFIX = ".clusterfn-mark-"
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Linux's number. Other systems have no leases.
_PEER = getattr(_socket, "SO_PEERCRED", 17)
_TAKEN = (errno.EADDRINUSE, errno.EWOULDBLOCK, errno.EACCES)
# Each process that waits for the holder's end takes one place in the backlog and keeps it until then.
_PLACES = 4096
# One user may hold these names several times, because they only inform others and lock nothing.
_OF_ANY_NUMBER = (lease_names.WAIT, lease_names.TURN)
# No more names of one other user are looked at. This is more than their jobs need, and each name costs all others time.
MOST_OF_ANOTHER = 4096
# A process that looks at a file locks it for a moment, so a single failure means nothing.
_TRIES = 25


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

    def answer(self) -> bool:
        """Close the connections that wait for its end; return whether a process of its own user was among them."""
        self._socket.setblocking(False)
        own = False
        # Another user may connect faster than the connections can be closed, so their number is limited.
        for _ in range(_PLACES):
            try:
                fd, _ = self._socket._accept()  # type: ignore[attr-defined]
            except OSError:
                break
            caller = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
            own = own or _peer_of(caller)[1] in (os.getuid(), 0)
            caller.close()
        return own

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

    def answer(self) -> bool:
        """Do nothing: a file cannot be woken by others."""
        return False

    def close(self) -> None:
        """Release the name, as far as this process is concerned; the last holder or its owner removes the file."""
        os.close(self._fd)
        if self._file:
            with contextlib.suppress(OSError, AttemptEnded), _LeaseFolder() as folder:
                folder.holders("", self._file)


class LeaseHolder:
    """The process that holds a name, and a connection that ends with the last process that has it.

    Attributes:
        pid: Of the process that took or inherited the name last; 0 if it is in a container that is not seen from here.
        uid: Its user.
    """

    def __init__(self, socket: "_socket.socket", pid: int, uid: int) -> None:
        self.pid = pid
        self.uid = uid
        self._socket = socket

    def fileno(self) -> int:
        """Hangs up when the name is released."""
        return self._socket.fileno()

    def close(self) -> None:
        """Wait no longer."""
        self._socket.close()


class SocketLeases:
    """Names as abstract unix sockets."""

    def hold(self, name: str) -> "Optional[SocketLease]":
        """Hold a name; None if another process does.

        A name that says whose it is counts for that user alone. So that user holds it with an ending where another user
        has bound it. Of two processes that have come by different names at once, both let go, and one is first later.
        """
        exclusive = lease_names.claimed_by(name) == os.getuid()
        for _ in range(_TRIES if exclusive else 1):
            bound = name
            lease = self._bind(name)
            if not exclusive or lease is None and self.find(name):
                return lease
            if lease is None:
                bound = lease_names.with_ending(name, os.urandom(4).hex())
                lease = self._bind(bound)
                who = holder_in_words(self, name)
                say("%s has bound the name %s of this user: it counts for nothing" % (who, name))
            if lease is not None:
                if name.startswith(_OF_ANY_NUMBER) or not self._own_names(name) - {bound}:
                    return lease
                lease.close()
            time.sleep(0.001 * (1 + os.urandom(1)[0] % 8))
        return None

    def _bind(self, name: str) -> "Optional[SocketLease]":
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            socket.bind(_address(name))
            socket.listen(_PLACES)
        except OSError as error:
            socket.close()
            # Python raises an OSError without a number for a name that is too long.
            if error.errno is not None and error.errno not in _TAKEN:
                raise
            return None
        return SocketLease(socket)

    def inherited(self, fd: int) -> SocketLease:
        """Resume a name that the process before this one held."""
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        # `listen` makes this process the one that others see as the holder.
        socket.listen(_PLACES)
        return SocketLease(socket)

    def binders(self) -> "dict[str, Optional[int]]":
        """Return the uid of the process that bound each name that is held; None where the kernel does not say."""
        uids = {name: bound.uid for name, bound in socket_table.bound_names(_PREFIX).items()}
        return {name: uids[name] for name in _some_of_each_user(uids.items())}

    def keeper(self, name: str) -> str:
        """Return who holds the name, as `_keeper_of` names them; "" if it is free."""
        bound = socket_table.bound_names(_PREFIX).get(name)
        return "" if bound is None else _keeper_of(bound.uid, str(bound.inode))

    def find(self, name: str) -> "Optional[str]":
        """Return the name by which this user holds one of their own, which may have an ending; None if they do not."""
        return min(self._own_names(name), default=None)

    def _own_names(self, name: str) -> "set[str]":
        plain_name = lease_names.plain(name)
        own: "set[str]" = set()
        for each, uid in self.binders().items():
            if lease_names.plain(each) != plain_name:
                continue
            holder = self.holder(each) if uid is None else None
            if holder is not None:
                uid = holder.uid
                holder.close()
            # Where it is still not known, the holder accepts no connections, or has too many. A process of this user
            # does neither.
            if uid in (os.getuid(), 0):
                own.add(each)
        return own

    def holder(self, name: str) -> "Optional[LeaseHolder]":
        """Return the holder of a name; None if it has gone, or too many wait for it."""
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        socket.setblocking(False)
        try:
            socket.connect(_address(name))
            return LeaseHolder(socket, *_peer_of(socket))
        except OSError:
            socket.close()
            return None


def _some_of_each_user(owned: "Iterable[Tuple[str, Optional[int]]]") -> "List[str]":
    """Return what this user or root has, and of each other one no more than `MOST_OF_ANOTHER`."""
    return lease_names.first_of_each(owned, MOST_OF_ANOTHER, (os.getuid(), 0, None))


def _keeper_of(uid: "Optional[int]", process: str) -> str:
    """Return another user, who may let go of a name and take it again; of one's own processes, this one.

    Many of one's own jobs that come at once each have the lock of all admissions for a moment, and wait for each other.
    """
    return process if uid in (None, os.getuid(), 0) else "uid=%d" % uid


def _peer_of(socket: "_socket.socket") -> "tuple[int, int]":
    """Return pid and uid of the process at the other end."""
    pid, uid, _ = struct.unpack("3i", socket.getsockopt(_socket.SOL_SOCKET, _PEER, 12))
    return pid, uid


def _address(name: str) -> bytes:
    return b"\0" + (_PREFIX + name).encode()


class FileLeases:
    """Names as locked files. Holders cannot wake others, and are known by uid alone: a job that waits looks again.

    Each holder locks a file of its own, in a folder where only the owner of a file may remove it. It then checks that
    no other file of that name is locked. So no other user can take a lease away: they can hold one, as by a socket.
    A name that says whose it is counts only in a file of that user's.
    """

    def hold(self, name: str) -> "Optional[FileLease]":
        """Hold a name; None if another process does.

        Raises:
            AttemptEnded: The folder lets others remove what is ours.
        """
        with _LeaseFolder() as folder:
            for _ in range(_TRIES):
                lease = folder.claim(name)
                if lease is not None:
                    return lease
                # Two processes that came together have both released the name. Random pauses let one of them come
                # first.
                time.sleep(0.001 * (1 + os.urandom(1)[0] % 8))
        return None

    def inherited(self, fd: int) -> FileLease:
        """Resume a name that the process before this one held."""
        return FileLease(fd)

    def binders(self) -> "dict[str, Optional[int]]":
        """Return the owner of the file of each name that is held; remove files of ours that are no longer held.

        Raises:
            AttemptEnded: The folder lets others remove what is ours.
        """
        with _LeaseFolder() as folder:
            return {name: uid for name, file in folder.files() for uid in folder.holders(name, file)}

    def keeper(self, name: str) -> str:
        """Return who holds the name, as `_keeper_of` names them; "" if it is free."""
        with _LeaseFolder() as folder:
            files = sorted(file for _, file in folder.files(name))
            return next((_keeper_of(uid, file) for file in files for uid in folder.holders(name, file)), "")

    def find(self, name: str) -> "Optional[str]":
        """Return the name, as no other user can take it; None if it is free."""
        return name if name in self.binders() else None

    def holder(self, _name: str) -> None:
        """Return None: files do not say."""
        return


class _LeaseFolder:
    """The folder of the files, open."""

    def __enter__(self) -> "_LeaseFolder":
        # This import is late, because most hosts have `lease: socket`.
        from ..agent.trusted import Trusted, user_name

        self._fd = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        status, trusted = os.fstat(self._fd), Trusted()
        if not trusted.owns(status) or trusted.writes(status) and not status.st_mode & stat.S_ISVTX:
            os.close(self._fd)
            who = "other users may remove files in %s, which belongs to %s" % (FOLDER, user_name(status.st_uid))
            hint = "ask the administrator for `chown root %s; chmod 1777 %s`" % (FOLDER, FOLDER)
            raise _useless(who, hint)
        private = _private_source(FOLDER)
        if private:
            os.close(self._fd)
            hint = "remove `lease: file` from clusterfn.yml: locks by sockets need no %s" % FOLDER
            raise _useless("%s is not the one of other users here, but %s" % (FOLDER, private), hint)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def files(self, name: str = "") -> "list[tuple[str, str]]":
        """List the name that each file is for, and the file; those for one name, if that is given."""
        start = _FILE_PREFIX + name.replace("/", ":") + ("-" if name else "")
        files = [file for file in os.listdir(self._fd) if file.startswith(start)]
        if len(files) > MOST_OF_ANOTHER:
            files = _some_of_each_user((file, uid) for file in files for uid in self._owner(file))
        named = [(file[len(_FILE_PREFIX) :].rpartition("-")[0].replace(":", "/"), file) for file in files]
        return [(each, file) for each, file in named if name in ("", each)]

    def _owner(self, file: str) -> "list[int]":
        try:
            return [os.stat(file, dir_fd=self._fd, follow_symlinks=False).st_uid]
        except FileNotFoundError:
            # The holder has removed its file meanwhile.
            return []

    def claim(self, name: str) -> "Optional[FileLease]":
        """Try once to hold a name; None if another holds it, tries just now, or has looked at the file in between."""
        own = "%s%s-%s" % (_FILE_PREFIX, name.replace("/", ":"), os.urandom(8).hex())
        fd = os.open(own, _LOOK | os.O_CREAT | os.O_EXCL, 0o444, dir_fd=self._fd)
        held = False
        try:
            # The umask must not keep other users from opening the file to look at its lock.
            os.fchmod(fd, 0o444)
            held = lock_file(fd, fcntl.LOCK_EX) and self._is_at(fd, own)
            held = held and not any(self.holders(name, file) for _, file in self.files(name) if file != own)
        finally:
            if not held:
                self._remove(fd, own)
                os.close(fd)
        return FileLease(fd, own) if held else None

    def holders(self, name: str, file: str) -> "list[int]":
        """Return the owner of a file that is held, if it may be of this name; remove one that is ours and is not."""
        try:
            fd = os.open(file, _LOOK, dir_fd=self._fd)
        except OSError:
            # The file is gone meanwhile, or it is not a file that clusterfn made.
            return []
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or lease_names.claimed_by(name) not in (None, status.st_uid):
                return []
            if not lock_file(fd, fcntl.LOCK_SH):
                return [status.st_uid]
            self._remove(fd, file)
        finally:
            os.close(fd)
        return []

    def _is_at(self, fd: int, file: str) -> bool:
        # A process that listed the files may have removed it.
        try:
            status = os.stat(file, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(fd), status)

    def _remove(self, fd: int, file: str) -> None:
        # Only an empty file of this user is removed, which no other user can have replaced.
        status = os.fstat(fd)
        if status.st_uid == os.geteuid() and status.st_size == 0 and self._is_at(fd, file):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file, dir_fd=self._fd)


def _useless(why: str, hint: str) -> AttemptEnded:
    message = "`lease: file` cannot keep GPUs apart: %s" % why
    return AttemptEnded(Verdict(ENVIRONMENT, message, stage="lease", hint=hint))


# Some machines give each user, each login (pam_namespace) or a service (systemd's PrivateTmp) another /tmp.
MOUNTS = "/proc/self/mountinfo"
_OF_SYSTEMD, _OF_PAM = "systemd-private-", "tmp-inst"
# What has been read, by the folder, its device and inode, and `MOUNTS`.
_private_sources: "dict[tuple[str, int, int, str], str]" = {}


def _private_source(folder: str) -> str:
    """Return what is mounted in place of a folder for this user, login or service alone; "" if that is not so."""
    status = os.stat(folder)
    key = folder, status.st_dev, status.st_ino, MOUNTS
    if key not in _private_sources:
        _private_sources[key] = _read_private_source(folder)
    return _private_sources[key]


def _read_private_source(folder: str) -> str:
    try:
        with open(MOUNTS, encoding="utf-8", errors="replace") as file:
            rows = [line.split(" ") for line in file]
    except OSError:
        # Only Linux has this file.
        return ""
    # Of several mounts at the same place, the last one hides the others.
    shown = [row[3] for row in rows if len(row) > 4 and row[4] == folder][-1:]
    return next(iter(source for source in shown if _is_private(source)), "")


def _is_private(source: str) -> bool:
    names, own = source.strip("/").split("/"), user_name(os.geteuid())
    is_named = names[-1] == own or names[-1].endswith("_" + own)
    return is_named or any(name.startswith((_OF_SYSTEMD, _OF_PAM)) for name in names)


def lock_file(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    return True


def holder_in_words(leases: "Leases", name: str) -> str:
    """Say which user holds a name, and with which process."""
    uid, pid, holder = leases.binders().get(name), 0, leases.holder(name)
    if holder is not None:
        uid, pid = holder.uid, holder.pid
        holder.close()
    user = "an unknown user" if uid is None else user_name(uid)
    return "%s (pid %d)" % (user, pid) if pid else user
