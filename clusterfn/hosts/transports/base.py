"""The interface of a transport, which opens a byte stream to a command on a host, and what transports share.

Each implementation translates the errors of its library, and passes tests/contract/test_transport_contract.py. The
simplest runs a command in /bin/sh of this machine (POSIX only). The process has its own session: the terminal's Ctrl-C
does not reach it, and it cannot ask on the terminal.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from clusterfn.bridge.agent.frames import USUAL, widen_pipe
from clusterfn.errors import ConfigError, Unreachable
from clusterfn.hosts.transports.prompts import Asker

T = TypeVar("T")
PAUSES_S = (0.3, 1.0, 2.0)
STDERR_KEPT = 8192
PATIENCE_S = 2.0
# Each SSH connection is probed this often, and is lost after so many probes without an answer: by ssh itself, by
# paramiko, and by TCP below it.
SSH_PROBE_S, SSH_PROBES = 15, 3


class Stream(Protocol):
    """Input and output of one running command. Two threads may read and write at once; a third may call `close`."""

    def read(self, size: int) -> bytes:
        """Wait for bytes; return at most `size` of them, or b"" once the stream has ended."""

    def write(self, data: bytes) -> None:
        """Write all of it; block while the other side is slow; raise OSError with a `cause` if the stream has ended."""

    def close(self) -> None:
        """End the stream, any number of times; a blocked `read` returns b""."""

    def cause(self) -> str | None:
        """Return why the stream ended; None while it is open, or if this side closed it."""

    def stderr(self) -> str:
        """Return the last few KB that the command has written to stderr."""


class Transport:
    """Reaches one host; `via` is what the last stream was opened by: "openssh (clusterfn login)"."""

    via: str

    def open(self, command: str, asker: Asker | None = None) -> Stream:
        """Start `command` in the user's login shell on the host.

        Args:
            asker: Asks the person for what a login needs; None rejects a login that needs one.

        Raises:
            HostError: Unreachable, AuthenticationError or HostKeyError where it is one of those.
        """
        raise NotImplementedError


@contextlib.contextmanager
def closed_on_failure(close: Callable[[], object]) -> Iterator[None]:
    """Close what was opened if the block fails."""
    try:
        yield
    except BaseException:
        # This includes Ctrl-C: no caller has it yet, so no caller could close it.
        close()
        raise


def open_with_retries(open_once: Callable[[], T], causes: tuple[type[BaseException], ...], within_s: float) -> T:
    """Call `open_once`; retry after each pause if it met one of these causes of an `Unreachable` within that time.

    A ConnectionResetError shows that a busy sshd hung up at once, a ConnectionAbortedError that something was killed.
    """
    for pause in PAUSES_S:
        began = time.monotonic()
        try:
            return open_once()
        except Unreachable as error:
            if not isinstance(error.__cause__, causes) or time.monotonic() - began > within_s:
                raise
            # A busy sshd drops many programs at the same time, so spread their retries.
            time.sleep(pause * random.uniform(0.5, 1.5))
    return open_once()


class ProcessStream:
    """A started process; see `Stream`. A thread reads its stderr, whose last words are kept."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
            env=env,
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._in, self._out, self._err = self.process.stdin, self.process.stdout, self.process.stderr
        self._stderr_tail = b""
        self._closed = False
        self._closings = itertools.count()
        # Held by a thread that reads, until which no other may close what it reads: its number may be given again.
        self._reading = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="clusterfn-stderr", daemon=True)
        self._listener.start()

    def read(self, size: int) -> bytes:
        with self._reading:
            if self._closed:
                return b""
            piece = os.read(self._out.fileno(), size)
            # A full pipe shows that much data comes. With a wider one, both sides wake less often.
            if len(piece) >= USUAL:
                widen_pipe(self._out.fileno())
            return piece

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            if len(data) >= USUAL:
                widen_pipe(self._in.fileno())
            while rest:
                if self._closed:
                    raise BrokenPipeError("this process closed the stream")
                written = os.write(self._in.fileno(), rest)
                rest = rest[written:]
        except ValueError as error:
            # A closed file raises ValueError instead of an OSError.
            raise BrokenPipeError("this process closed the stream") from error

    def close(self) -> None:
        self._close(PATIENCE_S)

    def _close(self, patience_s: float) -> None:
        """Close its input; kill its group if it has not ended by then."""
        self._closed = True
        if next(self._closings) > 0:
            # `next` is atomic: of several threads that close the stream, only one gets the 0.
            return
        self._in.close()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._kill()
            self.process.wait()
        self._listener.join(PATIENCE_S)
        if self._listener.is_alive():
            # The process has ended, but a child of it still holds the pipes, which would block the close below.
            with contextlib.suppress(ProcessLookupError):
                self._kill()
        with self._reading:
            self._out.close()
        self._listener.join(PATIENCE_S)
        self._err.close()

    def _kill(self) -> None:
        if sys.platform == "win32":
            self.process.kill()
        else:
            os.killpg(self.process.pid, signal.SIGKILL)

    def cause(self) -> str | None:
        if self._closed:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return how_it_ended(self.process.wait(PATIENCE_S))
        return None

    def stderr(self) -> str:
        if self.process.poll() is not None:
            self._listener.join(PATIENCE_S)
        return self._stderr_tail.decode(errors="replace")

    def _listen(self) -> None:
        while piece := self._err.read(STDERR_KEPT):
            self._hear(piece)

    def _hear(self, piece: bytes) -> None:
        self._stderr_tail = (self._stderr_tail + piece)[-STDERR_KEPT:]


def how_it_ended(code: int) -> str:
    """Say how a process ended whose `Popen.returncode` this is."""
    return f"it was ended by signal {-code}" if code < 0 else f"it ended with exit status {code}"


# What a host needs of its system (/proc, sockets without a file) is there on Linux alone.
_NOT_LINUX = {"win32": ("a Windows machine", ", or run this inside WSL"), "darwin": ("a Mac", "")}


class LocalTransport(Transport):
    """Commands on this machine."""

    via = "a process of this machine"

    def __init__(self, host: str = "local") -> None:
        self.host = host

    def open(self, command: str, asker: Asker | None = None) -> Stream:
        """Start `command`; see `Transport.open`."""
        if sys.platform in _NOT_LINUX:
            machine, other_way = _NOT_LINUX[sys.platform]
            hint = f"add a Linux host to clusterfn.yml (address: NAME, scheduler: bare){other_way}"
            raise ConfigError(f"Jobs cannot run on {machine} itself", host=self.host, hint=hint)
        return ProcessStream(["/bin/sh", "-c", command])
