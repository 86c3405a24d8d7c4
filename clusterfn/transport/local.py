"""This machine as a host: the command runs in /bin/sh, in a session of its own. POSIX only.

Called by `transport_for`. The session keeps the terminal's Ctrl-C away from the agent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

from clusterfn.errors import HostError
from clusterfn.transport.base import Stream

STDERR_KEPT = 8192
PATIENCE_S = 2.0
PIPE = 1 << 20


class LocalTransport:
    """Commands on this machine."""

    def __init__(self, host: str = "local") -> None:
        self.host = host

    def open(self, command: str) -> Stream:
        """Start `command`; see `Transport.open`."""
        if sys.platform == "win32":
            raise HostError(
                "Jobs cannot run on a Windows machine itself", host=self.host, hint="use a Linux host by ssh, or WSL"
            )
        return LocalStream(command)


class LocalStream:
    """The pipes of one process."""

    def __init__(self, command: str) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._in, self._out, self._err = self._process.stdin, self._process.stdout, self._process.stderr
        _widen(self._in.fileno(), self._out.fileno())
        self._said = b""
        self._closed = False
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="clusterfn-stderr", daemon=True)
        self._listener.start()

    def read(self, size: int) -> bytes:
        with self._reading:
            return b"" if self._closed else os.read(self._out.fileno(), size)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if self._closed:
                raise BrokenPipeError("the stream was closed here")
            rest = rest[self._write(rest) :]

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._in.fileno(), data)
        except ValueError as error:
            raise BrokenPipeError("the stream was closed here") from error

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._end()

    def _end(self) -> None:
        """The command sees the end of its input; one that stays all the same is killed, and its own group only."""
        self._in.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        with self._reading:
            self._out.close()
        self._listener.join()
        self._err.close()

    def cause(self) -> str | None:
        if self._closed:
            return None
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            return None
        return f"it was ended by signal {-code}" if code < 0 else f"it ended with exit status {code}"

    def stderr(self) -> str:
        if self._process.poll() is not None:
            self._listener.join(PATIENCE_S)
        return self._said.decode(errors="replace")

    def _listen(self) -> None:
        while piece := self._err.read(STDERR_KEPT):
            self._said = (self._said + piece)[-STDERR_KEPT:]


def _widen(*pipes: int) -> None:
    """Let each pipe hold more: large transfers then take fewer turns. Where that is refused they stay as they are."""
    with contextlib.suppress(ImportError, AttributeError, OSError):  # not POSIX, not Linux with Python 3.10, no room
        import fcntl

        for pipe in pipes:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)
