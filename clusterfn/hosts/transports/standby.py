"""A command that waits on a host, started ahead through a held connection: the next program need not wait for it.

`clusterfn login` starts a keeper (`standby_keeper.py`), a process of this machine. It holds one such command ready and
gives its input and output to the first program that asks. What waits is one agent, so `what` names its version.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from clusterfn.hosts import loop
from clusterfn.hosts.transports import openssh, ssh_errors
from clusterfn.hosts.transports.base import PATIENCE_S, STDERR_KEPT, ListeningStream, Standby, how_it_ended
from clusterfn.hosts.transports.held_connections import HeldConnection, socket_path

# How long an agent waits after the last program. It counts as use of the held connection, and so must end some time.
IDLE_S = 3600.0
# Replace a waiting agent after this time: it ends after 20 minutes of silence, and a new one sees a changed profile.
FRESH_S = 900.0
START_S, END_S = 30.0, 5.0
# Pause after a program took the agent, because that program's own call needs the processors first.
PAUSE_S = 2.0
# Give up after so many failures in a row: the host gives no further session, or ends processes that wait.
TRIES = 3
_KEEPER = Path(__file__).with_name("standby_keeper.py")
ANSWER_S = 0.3
_MESSAGE = 64 * 1024


def keep(held: HeldConnection, what: str, argv: list[str], first: bytes, marker: str) -> None:
    """Start a keeper, which ends with the held connection. If one is running already, it stays instead.

    Args:
        what: A short name for what waits; a program takes only what has the name that it wants.
        argv: Starts the command through the held connection.
        first: What the command reads first.
        marker: What it prints as a line of its own as soon as it waits.

    Raises:
        OSError: The keeper cannot be started.
    """
    plan = {
        "argv": argv, "first": base64.b64encode(first).decode(), "marker": marker,
        "address": str(_address(held.key, what)), "master": held.address, "pid": held.pid,
        "idle_s": min(IDLE_S, held.ttl_s / 8), "fresh_s": FRESH_S, "start_s": START_S, "end_s": END_S,
        "pause_s": PAUSE_S, "tries": TRIES,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_KEEPER)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, **openssh.ASK_NOBODY}, cwd="/", start_new_session=True,
    )  # fmt: skip
    assert process.stdin
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps(plan).encode())
    loop.reap(process)


def take(held: HeldConnection, what: str) -> Standby | None:
    """Return the waiting command of that name; None if none is ready. Waits for nothing on the host."""
    if sys.platform == "win32":
        raise AssertionError("no connection can be held on Windows")
    line = socket.socket(socket.AF_UNIX)
    fds: list[int] = []
    try:
        line.settimeout(ANSWER_S)
        line.connect(str(_address(held.key, what)))
        line.sendall(b"T")
        message, fds, _, _ = socket.recv_fds(line, _MESSAGE, 3)
        while message and not message.endswith(b"\n"):
            piece = line.recv(_MESSAGE)
            message = message + piece if piece else b""
        printed = json.loads(message)["printed"].encode("latin-1")
        for fd in fds:
            # Descriptors that come over a socket are inheritable, and
            # children of this program would keep the streams open.
            os.set_inheritable(fd, False)
        stdin, stdout, stderr = fds
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        # There may be no keeper, or one of another version that answers differently.
        for fd in fds:
            os.close(fd)
        line.close()
        return None
    return Standby(StandbyStream(line, stdin, stdout, stderr), printed)


def release(key: str) -> bool:
    """End what waits behind a connection, because its session is wanted; return whether there was a keeper."""
    had_keeper = False
    for line in _keepers(key):
        had_keeper = True
        with contextlib.suppress(OSError):
            line.settimeout(END_S + 1.0)
            line.sendall(b"R")
            # The keeper closes the line once the session is free.
            line.recv(1)
    return had_keeper


def wake(key: str) -> None:
    """Have the keepers of a connection see at once that it has ended."""
    for _ in _keepers(key):
        pass


def _keepers(key: str) -> Iterator[socket.socket]:
    """Yield a line to each keeper of a connection; remove the address of a dead one."""
    if sys.platform == "win32":
        raise AssertionError("no connection can be held on Windows")
    for path in socket_path(key).parent.glob(f"{key}-*.a"):
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(ANSWER_S)
            try:
                line.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                continue
            except OSError:
                continue
            yield line


def _address(key: str, what: str) -> Path:
    return socket_path(key).with_name(f"{key}-{what[:8]}.a")


class StandbyStream(ListeningStream):
    """A command's streams; see `base.Stream`. The keeper is its parent, and reports its exit status over `line`."""

    def __init__(self, line: socket.socket, stdin: int, stdout: int, stderr: int) -> None:
        self._line = line
        self._line.settimeout(PATIENCE_S)
        self._in, self._out, self._err = (socket.socket(fileno=fd) for fd in (stdin, stdout, stderr))
        self._code = ""
        super().__init__()

    def read(self, size: int) -> bytes:
        with self._reading, contextlib.suppress(ConnectionResetError):
            # ssh may end with bytes of ours unread, which resets the socket.
            return b"" if self._closed else self._out.recv(size)
        return b""

    def write(self, data: bytes) -> None:
        self._in.sendall(data)

    def close(self) -> None:
        if not self._begin_closing():
            return
        for each in (self._in, self._out, self._err):
            with contextlib.suppress(OSError):
                # The other side may have closed the socket already.
                each.shutdown(socket.SHUT_RDWR)
        self._in.close()
        with self._reading:
            self._out.close()
        self._listener.join(PATIENCE_S)
        self._err.close()
        with self._reading:
            # Another thread may be reading the exit status from it.
            self._line.close()

    def cause(self) -> str | None:
        with self._reading:
            if self._closed:
                return None
            with contextlib.suppress(OSError):
                # The read times out while the command is still running.
                self._code = self._code or self._line.recv(16).decode().strip() or "?"
        if not self._code:
            return None
        self._listener.join(PATIENCE_S)
        lost = ssh_errors.lost(self._stderr_tail.decode(errors="replace"))
        if self._code == "?":
            return lost or "it ended; its exit status is unknown, because the keeper of the held connection ended too"
        code = int(self._code)
        return lost if code == openssh.LOST_STATUS and lost else how_it_ended(code)

    def stderr(self) -> str:
        if self._code:
            self._listener.join(PATIENCE_S)
        return ssh_errors.without_chatter(self._stderr_tail.decode(errors="replace"))

    def _read_stderr(self) -> bytes:
        with contextlib.suppress(OSError):
            return self._err.recv(STDERR_KEPT)
        return b""
