"""List the abstract unix sockets of this network namespace that begin with a prefix, and who has bound each.

The kernel's own list says which user made a socket, from Linux 5.3 on; /proc/net/unix does not. Asking takes no place
in the queue of a listener, as a connection would.
"""

import _socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

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
