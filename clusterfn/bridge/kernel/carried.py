"""Local sockets whose bytes travel as frames: of Jupyter's clients on one side, of the kernel on the other.

The holder's own socket is in a private folder, whose path is short enough for it.
"""

import os
import selectors
import shutil
import socket
import sys
import tempfile
import time

from ..layout import ENTERING_VARIABLE
from ..supervisor.limits import clock
from .stream import CLOSE, DATA, READ_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

    from .stream import Frame, FrameStream

    Passing = Callable[[bytes], bytes]

_ATTACH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attach.py")
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


def attach_command(address: str) -> "List[str]":
    """Return the command that joins its stdin and stdout to a socket, from outside of a container too."""
    return [os.environ.get(ENTERING_VARIABLE, sys.executable), "-I", "-S", _ATTACH, address]


def receive(sock: "Any") -> "Optional[bytes]":
    """Return what a non-blocking socket has: None for nothing yet, b"" at its end, a reset included."""
    try:
        data = sock.recv(READ_BYTES)  # type: bytes
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""
    return data


class SocketWatcher:
    """Calls a function when a socket can be read or written."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, sock: "Any", events: int, callback: "Callable[[int], None]") -> None:
        """Watch a socket for these events from now on; for none with 0."""
        key = self._key_of(sock)
        if key is None and events:
            self._selector.register(sock, events, callback)
        elif key is not None and not events:
            self._selector.unregister(sock)
        elif key is not None and key.events != events:
            self._selector.modify(sock, events, callback)

    def forget(self, sock: "Any") -> None:
        """Watch a socket no longer, before it is closed."""
        if self._key_of(sock) is not None:
            self._selector.unregister(sock)

    def wait(self, seconds: float) -> None:
        """Wait for events, and handle them."""
        began = time.monotonic()
        ready = self._selector.select(seconds)
        # A wait that took much longer than asked means that this process was stopped, and that time counts for no
        # limit.
        clock.stopped_s += clock.overrun(began, seconds)
        for key, events in ready:
            # A callback of this round may have closed the socket of a later event.
            if self._key_of(key.fileobj) is key:
                key.data(events)

    def close(self) -> None:
        self._selector.close()

    def _key_of(self, sock: "Any") -> "Optional[selectors.SelectorKey]":
        is_closed = not isinstance(sock, int) and sock.fileno() < 0
        return None if is_closed else self._selector.get_map().get(sock)


class CarriedConnections:
    """The connections of one stream, each with a number.

    Args:
        watcher: The loop of this process.
        stream: It carries them.
        limit_bytes: While so much is not acknowledged, no socket is read.

    Attributes:
        undelivered: Bytes that have arrived for sockets that take no more at the moment.
    """

    def __init__(self, watcher: SocketWatcher, stream: "FrameStream", limit_bytes: int) -> None:
        self.undelivered = 0
        self._watcher = watcher
        self._stream = stream
        self._limit_bytes = limit_bytes
        self._open: "Dict[int, CarriedConnection]" = {}
        self._is_full = False

    def add(
        self, number: int, sock: "Optional[socket.socket]", sees: "Optional[Passing]" = None
    ) -> "CarriedConnection":
        """Carry the bytes of a socket from now on; keep what arrives for one that comes later.

        Args:
            sees: What its bytes pass; it returns what to send of them.
        """
        self._open[number] = connection = CarriedConnection(number, sees)
        if sock is not None:
            self.attach(connection, sock)
        return connection

    def attach(self, connection: "CarriedConnection", sock: "socket.socket") -> None:
        """Give a connection its socket."""
        sock.setblocking(False)
        connection.sock = sock
        self._update(connection)

    def take(self, frame: "Frame") -> None:
        """Deliver a DATA or a CLOSE of the other side; ignore one for a connection that has ended."""
        connection = self._open.get(frame.connection)
        if connection is None:
            return
        if frame.kind == CLOSE:
            connection.is_closing = True
        else:
            connection.outgoing += frame.body
            self.undelivered += len(frame.body)
        self._write(connection)

    def close_one(self, number: int) -> None:
        """Close a connection that has no socket, and tell the other side."""
        self._end(self._open[number])

    def pause_if_full(self) -> None:
        """Stop or begin again to read, by how much is not acknowledged."""
        is_full = self._stream.kept_bytes >= self._limit_bytes
        if is_full != self._is_full:
            self._is_full = is_full
            for connection in list(self._open.values()):
                self._update(connection)

    def drain(self) -> None:
        """Read all that the sockets hold, then close them: who wrote it has ended."""
        for connection in list(self._open.values()):
            while connection.number in self._open and connection.sock is not None and self._read(connection):
                pass
            if connection.number in self._open:
                self._end(connection)

    def close(self) -> None:
        """Close all sockets without a word."""
        for connection in list(self._open.values()):
            self._drop(connection)

    def __bool__(self) -> bool:
        return bool(self._open)

    def _update(self, connection: "CarriedConnection") -> None:
        if connection.sock is not None:
            reading = 0 if self._is_full or connection.is_closing else READ
            # A closing connection waits until it can be written, because `_write` drops it once it has taken
            # everything.
            events = reading | (WRITE if connection.outgoing or connection.is_closing else 0)
            self._watcher.watch(connection.sock, events, lambda ready: self._handle(connection, ready))

    def _handle(self, connection: "CarriedConnection", ready: int) -> None:
        if ready & WRITE:
            self._write(connection)
        if ready & READ and connection.number in self._open:
            self._read(connection)

    def _read(self, connection: "CarriedConnection") -> bool:
        assert connection.sock is not None
        data = receive(connection.sock)
        if data is None:
            return False
        if not data:
            self._end(connection)
            return False
        if connection.sees is not None:
            data = connection.sees(data)
        if data:
            self._stream.send(DATA, connection.number, data)
        return True

    def _write(self, connection: "CarriedConnection") -> None:
        if connection.sock is None:
            return
        try:
            while connection.outgoing:
                sent = connection.sock.send(memoryview(connection.outgoing)[:READ_BYTES])
                del connection.outgoing[:sent]
                self.undelivered -= sent
        except (BlockingIOError, InterruptedError):
            self._update(connection)
            return
        except OSError:
            self._end(connection)
            return
        if connection.is_closing:
            self._drop(connection)
        else:
            self._update(connection)

    def _end(self, connection: "CarriedConnection") -> None:
        self._stream.send(CLOSE, connection.number)
        self._drop(connection)

    def _drop(self, connection: "CarriedConnection") -> None:
        del self._open[connection.number]
        self.undelivered -= len(connection.outgoing)
        if connection.sock is not None:
            self._watcher.forget(connection.sock)
            connection.sock.close()


class CarriedConnection:
    """One connection.

    Attributes:
        sock: None as long as the kernel does not listen.
        outgoing: What it has not taken yet.
        is_closing: Whether it ends once it has taken that.
    """

    def __init__(self, number: int, sees: "Optional[Passing]") -> None:
        self.number = number
        self.sees = sees
        self.sock: "Optional[socket.socket]" = None
        self.outgoing = bytearray()
        self.is_closing = False


SOCKET = "s"
_PREFIX = "clusterfn-kernel-"


def make_private_folder() -> str:
    """Make a private folder with a short path on a disk of this machine; remove those of holders that were killed."""
    place = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()
    for name in os.listdir(place):
        folder = os.path.join(place, name)
        try:
            if name.startswith(_PREFIX) and os.stat(folder).st_uid == os.geteuid() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # Another holder has removed the folder meanwhile.
            continue
    return tempfile.mkdtemp(prefix=_PREFIX, dir=place)


def _is_abandoned(folder: str) -> bool:
    """Whether nothing listens at its socket. One that does not exist yet may appear in a moment."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sock.connect(os.path.join(folder, SOCKET))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    finally:
        sock.close()
    return False
