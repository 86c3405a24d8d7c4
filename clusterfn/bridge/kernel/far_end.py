"""The end of a stream inside a job: it connects what the other end opens, to a socket or a port beside it.

The other end, `clusterfn/integrations/jupyter`, listens on the user's machine. Between the two are the agent, on a bare
host, and a program that a scheduler starts on the job's node.
"""

import os
import socket
import sys

from ..supervisor.process_tree import read_proc
from .carried import READ, WRITE, CarriedConnections, SocketWatcher
from .stream import HELLO, OPEN, READ_BYTES, SAY, FrameSplitter, FrameStream, StreamDamaged, facts_of, pack_hello

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .stream import Facts, Frame


class StreamLink:
    """One connection of the other end: before its hello it belongs to no stream.

    Args:
        reading: The descriptor that brings its bytes.
        writing: That which takes ours; the same one for a socket.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing
        self.splitter = FrameSplitter()
        self.outgoing = memoryview(b"")
        self.is_greeted = self.is_refused = self.is_closed = False
        for fd in (reading, writing):
            os.set_blocking(fd, False)


class FarEnd:
    """One stream, whatever link carries it at the moment, and its connections.

    Args:
        limit_bytes: While so much is not acknowledged, no further output is read.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._watcher = SocketWatcher()
        self._link: "Optional[StreamLink]" = None
        self._begin_stream()

    def _begin_stream(self) -> None:
        self._stream = FrameStream()
        self._carried = CarriedConnections(self._watcher, self._stream, self._limit_bytes)

    # What one end differs in

    def _greet(self, facts: "Facts") -> "Facts":
        """Return what to answer a hello; `refused` ends its link."""
        return {}

    def _open(self, number: int, channel: int) -> None:
        """Carry a new connection of the other end."""
        raise NotImplementedError

    def _on_facts(self, facts: "Facts") -> None:
        """Obey what the other end says of the whole."""

    def _deliver(self, frame: "Frame") -> None:
        """Deliver what a connection brings."""
        self._carried.take(frame)

    def _on_lost_link(self) -> None:
        """Act on the loss of the link that has carried the stream."""

    # Links

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, InterruptedError):
            return
        fd = sock.detach()
        self._add_link(StreamLink(fd, fd))

    def _add_link(self, link: StreamLink) -> None:
        self._watcher.watch(link.reading, READ, lambda ready: self._handle(link, ready))

    def _handle(self, link: StreamLink, ready: int) -> None:
        if ready & WRITE:
            self._write(link)
        if ready & READ and not link.is_closed:
            self._read(link)

    def _read(self, link: StreamLink) -> None:
        try:
            data = os.read(link.reading, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        try:
            frames = link.splitter.feed(data)
            if frames and not link.is_greeted:
                self._answer_hello(link, frames.pop(0))
            for frame in self._stream.take(frames) if link is self._link else ():
                if frame.kind == OPEN:
                    self._open(frame.connection, frame.body[0])
                elif frame.kind == SAY:
                    self._on_facts(facts_of(frame))
                else:
                    self._deliver(frame)
        except (StreamDamaged, KeyError, ValueError, IndexError) as damaged:
            # The other end connects again and resumes, so no frame is lost.
            sys.stderr.write("clusterfn: the connection of the client is closed: %r\n" % damaged)
            data = b""
        if not data:
            self._lose(link)

    def _answer_hello(self, link: StreamLink, frame: "Frame") -> None:
        """Let a link carry the stream: the other end resumes it, or begins another."""
        if frame.kind != HELLO:
            raise StreamDamaged("it begins without a hello")
        facts = facts_of(frame)
        link.is_greeted = True
        answer = self._greet(facts)
        if "refused" in answer:
            link.outgoing = memoryview(pack_hello(answer))
            link.is_refused = True
        else:
            self._drop_link()
            self._stream.resume(int(facts["received"]))
            self._link = link
            link.outgoing = memoryview(pack_hello(dict(answer, received=self._stream.received)))
        self._write(link)

    def _send(self) -> None:
        """Send what there is to send."""
        self._carried.pause_if_full()
        if self._link is not None:
            self._write(self._link)

    def _write(self, link: StreamLink) -> None:
        try:
            while len(link.outgoing) or (link is self._link and self._stream.unsent()):
                if not len(link.outgoing):
                    link.outgoing = memoryview(self._stream.next_unsent())
                link.outgoing = link.outgoing[os.write(link.writing, link.outgoing) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._lose(link)
            return
        if link.is_refused and not len(link.outgoing):
            self._lose(link)
            return
        writes = WRITE if len(link.outgoing) else 0
        both = READ | writes if link.reading == link.writing else writes
        self._watcher.watch(link.writing, both, lambda ready: self._handle(link, ready))

    def _lose(self, link: StreamLink) -> None:
        if link is self._link:
            self._drop_link()
            self._on_lost_link()
        else:
            self._close_link(link)

    def _drop_link(self) -> None:
        self._stream.disconnect()
        if self._link is not None:
            self._close_link(self._link)
            self._link = None

    def _close_link(self, link: StreamLink) -> None:
        if not link.is_closed:
            link.is_closed = True
            for fd in {link.reading, link.writing}:
                self._watcher.forget(fd)
                os.close(fd)


# While this much is not acknowledged, no further output is read.
_LIMIT_BYTES = 8 * 2**20
# The state TCP_LISTEN, as /proc/net/tcp writes it.
_LISTENS = "0A"
_CONNECT_S = 5.0
_TICK_S = 1.0
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def carry_to_port(port: int) -> int:
    """Carry connections to a port of this machine, by stdin and stdout, until stdin ends.

    This is the far end of `clusterfn tunnel`, next to the job: `supervise.py tunnel PORT`. It carries only to a program
    of this user: on a shared machine, the port may be another's.
    """
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
    own = []
    others = False
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
    return [_LOOPBACK.get(own_address, own_address) for own_address in own], others


def _address(family: int, hexadecimal: str) -> str:
    """Return an address from the kernel's hexadecimal words, each in the order of this machine's bytes."""
    words = [int(hexadecimal[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(hexadecimal), 8)]
    address = socket.inet_ntop(family, b"".join(words))
    return address[len("::ffff:") :] if address.startswith("::ffff:") and "." in address else address
