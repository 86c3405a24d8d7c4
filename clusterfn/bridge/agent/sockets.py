"""Carry bytes both ways between the client and a unix socket of this machine."""

import os

from .files import CHUNK
from .frames import pack
from .handler import Failure, RequestHandler, expand

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Optional

CONNECT_S = 5.0


class ConnectHandler(RequestHandler):
    """Connect to a socket; the request's body and the client's chunks go into it, and what it says goes to the client.

    It ends when either side closes.
    """

    sock: "Optional[socket.socket]" = None

    def start(self) -> None:
        import socket  # here: it takes milliseconds, and few clients need it

        path = expand(self.header["path"])
        self.outgoing = bytearray(self.body)
        self.body = b""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.stat(path).st_uid != os.geteuid():
            raise Failure("refused", "it belongs to another user", path)
        sock.settimeout(CONNECT_S)  # waits only where many clients connect at the same moment
        sock.connect(path)
        sock.setblocking(False)
        # two numbers: the loop watches each either for reading or for writing
        self.sock, self.fd, self.write_fd = sock, sock.fileno(), os.dup(sock.fileno())
        self.agent.readers[self.fd] = self.on_data
        self.write(self.write_fd)

    def on_data(self, fd: int) -> None:
        """Stop watching, and read when there is room for it."""
        del self.agent.readers[fd]
        self.agent.out.offer(self)

    def is_urgent(self) -> bool:
        return True

    def frame(self) -> "Optional[bytes]":
        assert self.sock is not None
        try:
            data = self.sock.recv(CHUNK)
        except BlockingIOError:
            self.agent.readers[self.fd] = self.on_data
            return None
        except ConnectionResetError:
            data = b""
        if not data:
            self.end()
            return None
        return pack({"id": self.id}, data)

    def chunk(self, body: bytes, last: bool) -> None:
        if self.sock is None:
            raise Failure("bad", "the socket is not connected yet")
        self.outgoing += body
        self.write(self.write_fd)

    def write(self, fd: int) -> None:
        try:
            while self.outgoing:
                del self.outgoing[: os.write(fd, self.outgoing)]
        except BlockingIOError:
            self.agent.writers[fd] = lambda fd: self.safely(lambda: self.write(fd))
            return
        except (BrokenPipeError, ConnectionResetError):  # what it said before comes first
            self.outgoing.clear()
        self.agent.writers.pop(fd, None)

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        if self.sock is not None:
            self.agent.readers.pop(self.fd, None)
            self.agent.writers.pop(self.write_fd, None)
            os.close(self.write_fd)
            self.sock.close()
