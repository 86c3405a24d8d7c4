"""Carry connections to a port of this machine, by stdin and stdout: the far end of `clusterfn tunnel`, next to the job.

Runs as `supervise.py tunnel PORT`, as long as its stdin is open. It carries only to a program of this user: on a shared
machine, the port may be another's.
"""

import os
import socket
import sys

from ..supervisor.process_tree import read_proc
from .far_end import FarEnd, StreamLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .stream import Facts

# While this much is not acknowledged, no further output is read.
_LIMIT_BYTES = 8 * 2**20
# The state TCP_LISTEN, as /proc/net/tcp writes it.
_LISTENS = "0A"
_CONNECT_S = 5.0
_TICK_S = 1.0
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def carry_to_port(port: int) -> int:
    """Carry until stdin ends."""
    tunnel = PortEnd(port)
    while tunnel.turn():
        pass
    return 0


class PortEnd(FarEnd):
    """The stream of stdin and stdout, whose connections lead to a port."""

    def __init__(self, port: int) -> None:
        FarEnd.__init__(self, _LIMIT_BYTES)
        self._port = port
        self._is_over = False
        self._last_reason = ""
        self._add_link(StreamLink(0, 1))

    def turn(self) -> bool:
        """Wait for what is next, and handle it; False once all is over."""
        self._watcher.wait(_TICK_S)
        self._send()
        return not self._is_over

    def _greet(self, facts: "Facts") -> "Facts":
        # What the other end has received of an earlier stream ended with it.
        return {"fleeting": True}

    def _on_lost_link(self) -> None:
        self._is_over = True

    def _open(self, number: int, channel: int) -> None:
        """Connect. Close the connection and say why if nothing listens there, or a program of another user."""
        connection = self._carried.add(number, None)
        sock, why = connect_to_own(self._port)
        if sock is not None:
            self._carried.attach(connection, sock)
            self._last_reason = ""
            return
        self._carried.close_one(number)
        if why != self._last_reason:
            self._last_reason = why
            self._stream.say(closed=why)


def connect_to_own(port: int) -> "tuple[Optional[socket.socket], str]":
    """Connect to what this user has listening on a port; return no socket and why if there is nothing."""
    addresses, others = listeners_on(port)
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(_CONNECT_S)
        try:
            sock.connect((address, port))
        except OSError:
            sock.close()
            continue
        return sock, ""
    where = os.uname()[1]
    if others:
        return None, "port %d of %s belongs to another user" % (port, where)
    return None, "nothing listens on port %d of %s yet" % (port, where)


def listeners_on(port: int) -> "tuple[list[str], bool]":
    """Return the addresses on which programs of this user listen, loopback for any, and whether other users do."""
    own, others = [], False
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        # The file is missing outside Linux, and that of IPv6 where it is switched off.
        for line in read_proc("net", name).decode("ascii").splitlines()[1:]:
            words = line.split()
            address, _, number = words[1].rpartition(":")
            if words[3] == _LISTENS and int(number, 16) == port:
                if int(words[7]) == os.geteuid():
                    own.append(_address(family, address))
                else:
                    others = True
    # Without /proc, nothing says whose port it is, so the usual address is tried.
    if not os.path.exists("/proc/net/tcp"):
        own = ["127.0.0.1"]
    return [_LOOPBACK.get(each, each) for each in own], others


def _address(family: int, hexadecimal: str) -> str:
    """Return an address from the kernel's hexadecimal words, each in the order of this machine's bytes."""
    words = [int(hexadecimal[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(hexadecimal), 8)]
    address = socket.inet_ntop(family, b"".join(words))
    return address[len("::ffff:") :] if address.startswith("::ffff:") and "." in address else address
