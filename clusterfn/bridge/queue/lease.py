"""Hold names on a machine: one process at a time has one, every user sees it, and it ends with its last holder.

A name is an abstract unix socket, which also names its holder and wakes those that wait for its end. `lease_names` says
what the names mean.
"""

# The C half of `socket` alone, because the whole module takes 4 ms to import.
import _socket
import errno
import os
import struct
import time

from ..layout import ENVIRONMENT
from ..supervisor.process_tree import user_name
from ..supervisor.verdict import AttemptEnded, Verdict, log_line
from . import lease_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_PREFIX = "clusterfn/"
# Linux's number. Other systems have no leases.
_PEER = getattr(_socket, "SO_PEERCRED", 17)
# Each process that waits for the holder's end takes one place in the backlog and keeps it until then.
_PLACES = 4096
# No more names of one other user are looked at. This is more than their jobs need, and each name costs all others time.
MOST_OF_ANOTHER = 4096
_TRIES = 25
# No healthy process needs the lock of all admissions for longer than this.
_LOCK_S = 2.0
_POLL_S = 0.002
_FORBIDDEN = "this machine lets no job hold an abstract unix socket, which keeps the GPUs of jobs apart: %s"
_ALLOW = "let jobs bind such sockets: a sandbox, a container or a rule of AppArmor or SELinux forbids them"


class Lease:
    """A name held by a listening socket."""

    def __init__(self, socket: "_socket.socket") -> None:
        self._socket = socket

    def fileno(self) -> int:
        """What another process may inherit, to hold it too."""
        return self._socket.fileno()

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


class Leases:
    """The names that are held on this machine."""

    def hold(self, name: str) -> "Optional[Lease]":
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
                log_line("%s has bound the name %s of this user: it counts for nothing" % (who, name))
            if lease is not None:
                # One user may hold such names several times, because they only inform others and lock nothing.
                if name.startswith(lease_names.WAIT) or not self._own_names(name) - {bound}:
                    return lease
                lease.close()
            time.sleep(0.001 * (1 + os.urandom(1)[0] % 8))
        return None

    def _bind(self, name: str) -> "Optional[Lease]":
        socket = None  # type: Optional[_socket.socket]
        try:
            socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
            socket.bind(_address(name))
            socket.listen(_PLACES)
        except OSError as error:
            if socket is not None:
                socket.close()
            if error.errno in (errno.EACCES, errno.EPERM):
                raise AttemptEnded(Verdict(ENVIRONMENT, _FORBIDDEN % error, stage="lease", hint=_ALLOW)) from None
            # Python raises an OSError without a number for a name that is too long.
            if error.errno not in (None, errno.EADDRINUSE):
                raise
            return None
        return Lease(socket)

    def inherited(self, fd: int) -> Lease:
        """Resume a name that the process before this one held."""
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        # `listen` makes this process the one that others see as the holder.
        socket.listen(_PLACES)
        return Lease(socket)

    def binders(self) -> "dict[str, Optional[int]]":
        """Return the uid of the process that bound each name that is held; None where the kernel does not say."""
        uids = bound_names(_PREFIX)
        # All that this user or root has, and of each other user no more than `MOST_OF_ANOTHER`.
        names = lease_names.first_of_each(uids.items(), MOST_OF_ANOTHER, (os.getuid(), 0, None))
        return {name: uids[name] for name in names}

    def find(self, name: str) -> "Optional[str]":
        """Return the name by which this user holds one of their own, which may have an ending; None if they do not."""
        return min(self._own_names(name), default=None)

    def _own_names(self, name: str) -> "set[str]":
        plain_name = lease_names.plain(name)
        own: "set[str]" = set()
        for held_name, uid in self.binders().items():
            if lease_names.plain(held_name) != plain_name:
                continue
            holder = self.holder(held_name) if uid is None else None
            if holder is not None:
                uid = holder.uid
                holder.close()
            # Where it is still not known, the holder accepts no connections, or has too many. A process of this user
            # does neither.
            if uid in (os.getuid(), 0):
                own.add(held_name)
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


def _peer_of(socket: "_socket.socket") -> "tuple[int, int]":
    """Return pid and uid of the process at the other end."""
    pid, uid, _ = struct.unpack("3i", socket.getsockopt(_socket.SOL_SOCKET, _PEER, 12))
    return pid, uid


def _address(name: str) -> bytes:
    return b"\0" + (_PREFIX + name).encode()


def holder_in_words(leases: "Leases", name: str) -> str:
    """Say which user holds a name, and with which process."""
    uid = leases.binders().get(name)
    pid = 0
    holder = leases.holder(name)
    if holder is not None:
        uid, pid = holder.uid, holder.pid
        holder.close()
    user = "an unknown user" if uid is None else user_name(uid)
    return "%s (pid %d)" % (user, pid) if pid else user


class AdmissionLock:
    """The lock of all admissions, for a with block, unless a process keeps it for ever: then the names alone decide.

    Args:
        leases: How names are held here.

    Attributes:
        is_held: Whether this process has it.
    """

    def __init__(self, leases: "Leases") -> None:
        self._leases = leases
        self._lock: "Optional[Lease]" = None

    @property
    def is_held(self) -> bool:
        return self._lock is not None

    def __enter__(self) -> "AdmissionLock":
        until = time.monotonic() + _LOCK_S
        self._lock = self._leases.hold(lease_names.ADMISSION)
        while self._lock is None and time.monotonic() < until:
            time.sleep(_POLL_S)
            self._lock = self._leases.hold(lease_names.ADMISSION)
        if self._lock is None:
            who = holder_in_words(self._leases, lease_names.ADMISSION)
            log_line("%s keeps the lock of the queue: this job does not wait for it" % who)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


TABLE = "/proc/net/unix"
# The flags and the type are those of stream sockets that are not connected, as /proc shows them.
_LISTED = rb": \w+ \w+ \w+ 0001 01 +\d+ @([^\s@]+)\n"
# Of names: ASCII without blanks, and without the sign by which /proc shows the zero byte that begins them.
_SIGNS = bytes(number for number in range(33, 127) if number != ord("@"))

# Constants from <linux/netlink.h>, <linux/sock_diag.h> and <linux/unix_diag.h>.
SOCK_DIAG = 4
_BY_FAMILY = 20
_DUMP = 0x301
_DONE, _ERROR = 3, 2
_BOUND, _LISTENING = 7, 10
_SHOW_NAME, _SHOW_UID = 1, 0x40
_NAME_ATTRIBUTE, _UID_ATTRIBUTE = 0, 7
_HEAD, _ASKED, _FOUND, _ATTRIBUTE = map(struct.Struct, ("=IHHII", "=BBHIII2I", "=BBBBI2I", "=HH"))
_ROOM = 1 << 18
_PATIENCE_S = 5.0
# The kernel shows this id for a user who has none in this user namespace.
_NOBODY = 65534
# Linux's number. Elsewhere, no such socket can be made.
_NETLINK = getattr(_socket, "AF_NETLINK", 16)


def bound_names(prefix: str) -> "dict[str, Optional[int]]":
    """Return the uid of who has bound each name, None if that is not known, by the name without the prefix."""
    try:
        bindings = _ask_kernel()
    except (OSError, struct.error):
        # An old kernel or a sandbox does not answer; /proc shows the same names without their users.
        bindings = _read_table()
    start = prefix.encode()
    return {name[len(start) :].decode("ascii"): bound for name, bound in bindings.items() if name.startswith(start)}


def _read_table() -> "dict[bytes, Optional[int]]":
    # This import is late, because most kernels answer, and it takes 4 ms.
    import re

    try:
        with open(TABLE, "rb") as file:
            listed = re.findall(_LISTED, file.read())
    except (FileNotFoundError, PermissionError):
        # A sandbox shows no table. Then nothing is listed, but the kernel still lets only one process bind a name.
        return {}
    return dict.fromkeys(filter(_is_plain, listed))


def _ask_kernel() -> "dict[bytes, Optional[int]]":
    socket = _socket.socket(_NETLINK, _socket.SOCK_RAW, SOCK_DIAG)
    try:
        socket.settimeout(_PATIENCE_S)
        states = 1 << _BOUND | 1 << _LISTENING
        request = _ASKED.pack(_socket.AF_UNIX, 0, 0, states, 0, _SHOW_NAME | _SHOW_UID, 0, 0)
        socket.send(_HEAD.pack(_HEAD.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        bindings: "dict[bytes, Optional[int]]" = {}
        while _read_answer(socket.recv(_ROOM), bindings):
            pass
        return bindings
    finally:
        socket.close()


def _read_answer(data: bytes, bindings: "dict[bytes, Optional[int]]") -> bool:
    """Add what one part of the answer lists; return whether more is to come."""
    start = 0
    while start < len(data):
        length, kind = _HEAD.unpack_from(data, start)[:2]
        if kind == _DONE:
            return False
        if kind == _ERROR:
            number = -struct.unpack_from("=i", data, start + _HEAD.size)[0]
            raise OSError(number, "sock_diag")
        _read_socket(data[start + _HEAD.size : start + length], bindings)
        start += length + 3 & ~3
    return True


def _read_socket(data: bytes, bindings: "dict[bytes, Optional[int]]") -> None:
    name = b""
    start = _FOUND.size
    uid: "Optional[int]" = None
    if _FOUND.unpack_from(data)[1] != _socket.SOCK_STREAM:
        return
    while start < len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if kind == _NAME_ATTRIBUTE:
            name = data[start + 4 : start + length]
        elif kind == _UID_ATTRIBUTE:
            uid = struct.unpack_from("=I", data, start + 4)[0]
        start += length + 3 & ~3
    if name.startswith(b"\0") and _is_plain(name[1:]):
        bindings[name[1:]] = None if uid == _NOBODY else uid


def _is_plain(name: bytes) -> bool:
    return bool(name) and not name.translate(None, _SIGNS)
