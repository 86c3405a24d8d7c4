"""The sockets of a session: its client sends calls, and their output, events and outcomes come back through runners.

The files of the calls are the record; everything that the sockets carry is in them too. So the session may drop a
client that reads too slowly: that client continues with the files, from the last byte that it received.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..agent.frames import Inbox, pack
from ..kernel.carried import READ, SOCKET, WRITE, SocketWatcher, make_private_folder, receive
from ..kernel.stream import READ_BYTES

if TYPE_CHECKING:
    from ..agent.frames import Header

# A client with more unsent bytes is too slow.
MOST_UNSENT = 16 << 20
# The report that a call was taken waits so long for another frame, such as the end of the call.
TAKEN_AFTER_S = 0.02
_NOT_YET = ".new"
# The client fetches a larger value from its file.
SMALL_VALUE = 1 << 20


class ClientConnection:
    """One connection of a client.

    Attributes:
        due: When to say which calls were taken; 0 if there is nothing to say.
        answers_pieces: Whether to answer a piece of a frame at once. It comes through srun then, whose next piece
            waits for an acknowledgement: 40 ms, unless something goes the other way.
    """

    def __init__(self, sock: socket.socket, watcher: SocketWatcher, on_frame: Callable[..., None]) -> None:
        self.due = 0.0
        self.answers_pieces = False
        # The first is the last call that was taken, the second the last one that the client knows of.
        self._taken = self._reported = 0
        self.sock = sock
        self._watcher = watcher
        self._on_frame = on_frame
        self._inbox = Inbox()
        self._unsent = bytearray()
        self.is_open = True
        watcher.watch(sock, READ, self._on_ready)

    def _on_ready(self, ready: int) -> None:
        if ready & WRITE:
            self._write()
        if not (ready & READ and self.is_open):
            return
        data = receive(self.sock)
        if data is None:
            return
        if not data:
            self.close()
            return
        try:
            for header, body in self._inbox.feed(data):
                self._on_frame(self, header, body)
        except (ValueError, KeyError, TypeError):
            # What came is no frame.
            self.close()
        if self.answers_pieces and self._inbox.data:
            self.send("taken")

    def has_taken(self, number: int) -> None:
        """Say with the next frame that all calls up to this number that came through it are in their folders."""
        self._taken = max(self._taken, number)
        self.due = self.due or time.monotonic() + TAKEN_AFTER_S

    def send(self, what: str, body: bytes = b"", **facts: Any) -> None:
        """Send a frame; close a connection that takes too long to take what was sent before."""
        if not self.is_open:
            return
        self._unsent += pack({**facts, "what": what, "taken": self._taken}, body)
        self._reported = self._taken
        self.due = 0.0
        self._write()
        if len(self._unsent) > MOST_UNSENT:
            self.close()

    def flush(self) -> None:
        """Say which calls were taken."""
        self.due = 0.0
        if self._taken > self._reported:
            self.send("taken")

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            self._watcher.watch(self.sock, READ | WRITE, self._on_ready)
            return
        except OSError:
            # The client is gone.
            self.close()
            return
        self._watcher.watch(self.sock, READ, self._on_ready)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._watcher.forget(self.sock)
            self.sock.close()
            self._unsent.clear()


class SessionSocket:
    """The socket, in a private folder of this machine.

    Args:
        on_frame: Gets each frame with its connection.

    Attributes:
        address: The path of the socket; "" if there can be none.
    """

    def __init__(self, watcher: SocketWatcher, on_frame: Callable[[ClientConnection, Header, bytes], None]) -> None:
        self.address = ""
        self._watcher = watcher
        self._on_frame = on_frame
        self._connections: list[ClientConnection] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._folder = make_private_folder()
            address = os.path.join(self._folder, SOCKET)
            # Under its name only when it listens: another session takes a folder whose socket refuses for abandoned.
            self._listener.bind(address + _NOT_YET)
            self._listener.listen(8)
            os.rename(address + _NOT_YET, address)
        except OSError:
            # There is no place for a socket, and calls come as files.
            return
        self.address = address
        self._listener.setblocking(False)
        watcher.watch(self._listener, READ, lambda _: self._accept())

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError, ConnectionAbortedError):
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            self._connections = [connection for connection in self._connections if connection.is_open]
            self._connections.append(ClientConnection(sock, self._watcher, self._on_frame))

    def due(self) -> list[float]:
        """Return when something is to be said."""
        return [connection.due for connection in self._connections if connection.due and connection.is_open]

    def flush(self, now: float) -> None:
        for connection in self._connections:
            if connection.is_open and 0.0 < connection.due <= now:
                connection.flush()

    def send(self, what: str, **facts: Any) -> None:
        for connection in self._connections:
            connection.send(what, **facts)

    def fds(self) -> list[int]:
        """Return the descriptors that no other process must keep open."""
        sockets = [connection.sock for connection in self._connections if connection.is_open]
        return [self._listener.fileno(), *(sock.fileno() for sock in sockets)]

    def close(self) -> None:
        """Close all connections and remove the socket."""
        for connection in self._connections:
            connection.close()
        self._listener.close()
        if self.address:
            shutil.rmtree(self._folder, ignore_errors=True)


class Listener:
    """The connection through which a call came, for what is written to the files of the call.

    Args:
        is_live: Whether it hears what the call prints.
    """

    def __init__(self, connection: ClientConnection, number: int, is_live: bool) -> None:
        self.is_live = is_live
        self._connection = connection
        self._number = number

    def pass_on(self, what: str, data: bytes, value_path: str, size: int) -> None:
        """Take what was written to the call's files.

        Args:
            what: "events", "stdout", "stderr" or "end".
            data: What was appended to the file, or the outcome.
            value_path: The file of its value.
            size: How large that is.
        """
        if what == "end":
            value = b"" if size > SMALL_VALUE else _read(value_path, size)
            lengths = {"outcome": len(data), "has_value": len(value) == size}
            self._connection.send("end", data + value, n=self._number, **lengths)
        else:
            self._connection.send(what, data, n=self._number)


def _read(path: str, size: int) -> bytes:
    if not size:
        return b""
    try:
        # The function `open` would make more system calls.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, size)
        finally:
            os.close(fd)
    except OSError:
        # The client notices that the value is missing.
        return b""


# The runner's end of a socket. It is here because both `runner` and `keep_actor` use it, and one imports the other.
class ServerLink:
    """The way from a runner to the session's server; `waiting` are the orders that have come."""

    def __init__(self, sock: socket.socket) -> None:
        self.waiting: collections.deque[Header] = collections.deque()
        self._sock = sock
        self._inbox = Inbox()

    def fileno(self) -> int:
        return self._sock.fileno()

    def read(self) -> bool:
        """Wait for orders; False once the server has closed it."""
        data = self._sock.recv(READ_BYTES)
        self.waiting += [header for header, _ in self._inbox.feed(data)]
        return bool(data)

    def next(self) -> Header | None:
        """Wait for an order; None once the server has closed it."""
        while not self.waiting:
            if not self.read():
                return None
        return self.waiting.popleft()

    def send(self, body: bytes = b"", **header: Any) -> None:
        """Send the server a frame, which wakes it."""
        self._sock.sendall(pack(header, body))

    def reporter(self, number: int) -> Callable[..., None]:
        """Return what informs the server of what is written to the files of a call, as a `Reporter`.

        Each frame wakes the server, which takes time from the call.
        """

        def report(what: str, data: bytes, **facts: Any) -> None:
            self.send(data, **facts, n=number, what=what)

        return report
