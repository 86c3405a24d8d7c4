"""Carry bytes both ways between the client and a unix socket of this machine, or a program that runs on it."""

import os
import signal
import struct

from .forked import ChildProgram, changed_environment, make_pipes
from .frames import pack
from .handler import Failure, RequestHandler, expand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple

    from .frames import Frame, Header

CONNECT_S = 5.0
_WORDS = 4096
# The same size as in kernel/stream.py, which the agent cannot import.
READ_BYTES = 64 * 1024
# srun of SLURM 22.05 carries its input and output in pieces of this size.
SRUN_PIECE = 1024


class SocketHandler(RequestHandler):
    """Connect to a socket; the request's body and the client's chunks go into it, and what it says goes to the client.

    It ends when either side closes.
    """

    fd = write_fd = -1

    def start(self) -> None:
        self.outgoing = bytearray(self.body)
        self.body = b""
        self.fd, self.write_fd = self.connected()
        os.set_blocking(self.fd, False)
        os.set_blocking(self.write_fd, False)
        self.agent.readers[self.fd] = self.on_data
        self.write(self.write_fd)

    def connected(self) -> "Tuple[int, int]":
        """Return what to read from and what to write to: two numbers, as the loop watches each for one of the two."""
        # This import takes milliseconds, and few clients connect to a socket.
        import socket

        path = expand(self.header["path"])
        if os.stat(path).st_uid != os.geteuid():
            raise Failure("refused", "it belongs to another user", path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            # A connect to a unix socket waits only while its backlog is full, as when many clients connect at the same
            # moment.
            sock.settimeout(CONNECT_S)
            sock.connect(path)
            # Another user may have replaced the file between `stat` and `connect`. Only Linux can tell who listens.
            if hasattr(socket, "SO_PEERCRED"):
                credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                if struct.unpack("3i", credentials)[1] != os.geteuid():
                    raise Failure("refused", "a process of another user listens there", path)
            return os.dup(sock.fileno()), sock.detach()

    def on_data(self, fd: int) -> None:
        """Stop watching, and read when there is room for it."""
        del self.agent.readers[fd]
        self.agent.out.offer(self)

    def is_urgent(self) -> bool:
        return True

    def frame(self) -> "Optional[bytes]":
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            self.agent.readers[self.fd] = self.on_data
            return None
        except ConnectionResetError:
            data = b""
        if not data:
            self.on_close()
            return None
        self.on_output(data)
        return pack({"id": self.id}, data)

    def on_output(self, data: bytes) -> None:
        """Act on what it says, before that is sent."""

    def on_close(self) -> None:
        """Act on the end of what it says."""
        self.end()

    def chunk(self, body: "Frame", header: "Header") -> None:
        if self.write_fd < 0:
            raise Failure("bad", "it is not connected yet")
        self.outgoing += body
        self.write(self.write_fd)

    def write(self, fd: int) -> None:
        try:
            while self.outgoing:
                del self.outgoing[: os.write(fd, self.outgoing)]
        except BlockingIOError:
            self.agent.writers[fd] = lambda fd: self.safely(lambda: self.write(fd))
            return
        except (BrokenPipeError, ConnectionResetError):
            # The peer has closed, but what it wrote before is still to be read and sent to the client.
            self.outgoing.clear()
        self.agent.writers.pop(fd, None)

    def stop(self) -> None:
        self.end()

    def release(self) -> None:
        if self.write_fd >= 0:
            self.agent.readers.pop(self.fd, None)
            self.agent.writers.pop(self.write_fd, None)
            os.close(self.fd)
            os.close(self.write_fd)
            self.fd = self.write_fd = -1


class ProgramHandler(SocketHandler):
    """Start a program whose input and output take the place of the socket; its exit status and last words answer.

    With a `nudge`, a full piece of srun is answered with it. srun sends each piece in a packet of its own, and TCP
    keeps the next small one back until the first is acknowledged: after 40 ms, unless something goes the other way.
    What the client writes at once stays in one piece: the nudge comes before or after it.
    """

    child: "Optional[ChildProgram]" = None
    errors = -1
    words = b""
    status: "Optional[int]" = None
    is_closed = False

    def connected(self) -> "Tuple[int, int]":
        (its_input, write_fd), (fd, its_output), (self.errors, its_errors) = make_pipes(3)
        os.set_blocking(self.errors, False)
        self.agent.readers[self.errors] = self.on_words
        try:
            fds = (its_input, its_output, its_errors)
            self.child = ChildProgram(self.agent, self.header, changed_environment(self.header), fds, self.on_exit)
        except (OSError, Failure):
            os.close(fd)
            os.close(write_fd)
            raise
        return fd, write_fd

    def on_words(self, fd: int) -> None:
        """Keep the last words of its stderr."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return
        self.words = (self.words + data)[-_WORDS:]
        if not data:
            del self.agent.readers[fd]

    def on_output(self, data: bytes) -> None:
        # A nudge must not split what the client sends. While such bytes are on their way, they have the effect of a
        # nudge.
        if not self.outgoing and len(data) % SRUN_PIECE == 0 and self.header.get("nudge"):
            self.chunk(self.header["nudge"].encode(), {})

    def on_close(self) -> None:
        self.is_closed = True
        self.conclude()

    def on_exit(self, status: int) -> None:
        self.status = status
        self.conclude()

    def conclude(self) -> None:
        """End once all that it has said is read, and its status is known."""
        if self.ended or self.status is None or not self.is_closed:
            return
        if self.errors in self.agent.readers:
            self.on_words(self.errors)
        if self.child is not None and self.child.failure is not None:
            self.fail(self.child.failure)
            return
        if self.status == 0:
            self.end()
            return
        last_words = self.words.decode("utf-8", "replace").strip()
        code = os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else -os.WTERMSIG(self.status)
        message = "%s ended with status %d%s" % (self.header["argv"][0], code, ": " + last_words if last_words else "")
        self.fail(Failure("unavailable" if code == os.EX_UNAVAILABLE else "program", message))

    def release(self) -> None:
        SocketHandler.release(self)
        if self.errors >= 0:
            self.agent.readers.pop(self.errors, None)
            os.close(self.errors)
            self.errors = -1
        if self.child is not None and self.status is None:
            self.child.signal(signal.SIGTERM)
