"""A host in memory: `FakeTransport` runs a plain function where a real transport runs a command.

    def handler(request, body):              # plays the agent: one request in, answer frames out
        yield {"end": True, "ok": True, "have": [True]}, b""

    connection = HostConnection(host, FakeTransport(agent(handler)))

It remembers every command and every request, and `drop()` breaks the stream as a dead network does.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from clusterfn.hosts.rpc.frames import FrameReader, Header, pack
from clusterfn.hosts.transports import Transport

Handler = Callable[[Header, bytes], Iterable[tuple[Header, bytes]]]
HELLO: Header = {
    "root": "/home/fake/.clusterfn", "python": "/usr/bin/python3", "version": [3, 6, 8], "platform": "linux-x86_64",
    "machine": "0123-fake", "boot_id": "b0", "hostname": "fake", "uid": 1000, "user": "fake", "home": "/home/fake",
    "umask": 0o022,
    "pid": 42, "cpus": 8, "memory_bytes": 2**36, "net_ns": "net:[1]", "glibc": "2.36", "have": [], "lacking": [],
}  # fmt: skip


class Pipe:
    """Bytes from one thread to another."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._changed = threading.Condition()
        self.closed = False

    def write(self, data: bytes) -> None:
        with self._changed:
            if self.closed:
                raise BrokenPipeError("the pipe is closed")
            self._data += data
            self._changed.notify_all()

    def read(self, size: int) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._data or self.closed)
            piece = bytes(self._data[:size])
            del self._data[:size]
            return piece

    def line(self) -> bytes:
        """One line, without its end; what there is if it is closed before."""
        with self._changed:
            self._changed.wait_for(lambda: b"\n" in self._data or self.closed)
            line, _, rest = bytes(self._data).partition(b"\n")
            self._data[:] = rest
            return line

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class Far:
    """The host's end of a stream: what a program reads is the client's input."""

    def __init__(self) -> None:
        self.input, self.output = Pipe(), Pipe()
        self.errors = ""

    def read(self, size: int) -> bytes:
        return self.input.read(size)

    def write(self, data: bytes) -> None:
        self.output.write(data)

    def line(self) -> bytes:
        """One line of input, without its end."""
        return self.input.line()


Program = Callable[[str, Far], int]


class FakeStream:
    """The client's end."""

    def __init__(self, far: Far) -> None:
        self.far = far
        self.ended: str | None = None
        self.closed = False

    def read(self, size: int) -> bytes:
        return self.far.output.read(size)

    def write(self, data: bytes) -> None:
        self.far.input.write(data)

    def close(self) -> None:
        self.closed = True
        self._hang_up()

    def cause(self) -> str | None:
        return None if self.closed else self.ended

    def stderr(self) -> str:
        return self.far.errors

    def drop(self, why: str) -> None:
        """Break it."""
        self.ended = self.ended or why
        self._hang_up()

    def _hang_up(self) -> None:
        self.far.input.close()
        self.far.output.close()


class FakeTransport(Transport):
    """Runs `program(command, far)` in a thread per stream; the int that it returns is its exit status.

    Attributes:
        commands: What was to be opened so far.
        streams: Each stream so far, the newest last.
        error: If set, `open` raises it.
    """

    via = "a fake"

    def __init__(self, program: Program) -> None:
        self.program = program
        self.commands: list[str] = []
        self.streams: list[FakeStream] = []
        self.error: Exception | None = None

    def open(self, command: str, asker: Any = None) -> FakeStream:
        self.commands.append(command)
        if self.error is not None:
            raise self.error
        stream = FakeStream(Far())
        self.streams.append(stream)
        threading.Thread(target=self._run, args=(command, stream), daemon=True).start()
        return stream

    def drop(self, why: str = "the connection was lost") -> None:
        """Break the newest stream."""
        self.streams[-1].drop(why)

    def _run(self, command: str, stream: FakeStream) -> None:
        try:
            code = self.program(command, stream.far)
        except BrokenPipeError:
            return
        stream.drop(f"it ended with exit status {code}")


class agent:
    """A program that boots like the agent and answers each request by `handler(header, body)`.

    Attributes:
        asked: Every request so far, chunks included.
        hello: The facts that it tells.
    """

    def __init__(self, handler: Handler, **facts: Any) -> None:
        self.handler = handler
        self.hello = {**HELLO, "now": time.time(), **facts}
        self.asked: list[Header] = []

    def __call__(self, command: str, far: Far) -> int:
        far.write(b"noise of an rc file\n" + self.marker(far) + b"\n")
        reader = FrameReader(far.read)
        while (frame := reader.frame()) is not None:
            self.answer(far, *frame)
        return 0

    def marker(self, far: Far) -> bytes:
        """Read what a real host would execute."""
        lines = [far.line() for _ in range(8)]
        assert lines == [b""] * 8, lines
        far.line()  # which Python
        loader = far.line()
        far.line()  # the agent
        return b"".join(re.findall(rb"'([0-9a-f]+)'", loader))

    def answer(self, far: Far, header: Header, body: bytes) -> None:
        if header["do"] == "hello":
            far.write(pack({"id": header["id"], "end": True, "ok": True, **self.hello}))
            return
        self.asked.append(header)
        for fields, content in self.handler(header, body):
            far.write(pack({"id": header["id"], **fields}, content))
