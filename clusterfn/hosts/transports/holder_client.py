"""Start the process that holds a connection (`holder_process`), talk to it, and open streams through it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts.transports import held_connections, ssh_errors
from clusterfn.hosts.transports.held_connections import HeldConnection
from clusterfn.hosts.transports.prompts import Asker, NotAnswered, Question
from clusterfn.hosts.transports.ssh_config import Settings

if TYPE_CHECKING:
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection as Connection
    else:
        from multiprocessing.connection import Connection

    Line = Connection[Any, Any]

STDERR_KEPT = 8192
STATUS_S = 2.0
ANSWER_S = 30.0
CHECK_S = 5.0
_PIECE = 64 * 1024
_PIECES = 64
_GONE = (OSError, EOFError)
_START = "from clusterfn.hosts.transports.holder_process import main; main()"


def log_in(host: Host, asker: Asker | None) -> HeldConnection:
    """Start a holder, have its questions answered, and leave it to itself.

    Raises:
        HostError: As `Transport.open`.
    """
    process = _started()
    assert process.stdin and process.stdout
    try:
        pickled = base64.b64encode(pickle.dumps(host)).decode()
        _tell(process, {"host": pickled, "asks": asker is not None})
        while (said := _hear(process, host)).keys() == {"ask"}:
            assert asker is not None
            _tell(process, {"answer": _answer(asker, Question(**said["ask"]))})
        if "error" in said:
            raise _its_error(said["error"])
        return HeldConnection(**said["held"])
    except BaseException:  # Ctrl-C too: it is in a session of its own and would stay
        process.kill()
        process.wait()
        raise
    finally:
        process.stdin.close()
        process.stdout.close()
        threading.Thread(target=process.wait, name="clusterfn-holder", daemon=True).start()


def _started() -> subprocess.Popen[str]:
    detached: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        detached = {"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP}
    return subprocess.Popen(
        [sys.executable, "-c", _START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        cwd=os.path.abspath(os.sep),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(folder) for folder in sys.path)},
        **detached,
    )


def _answer(asker: Asker, question: Question) -> str | None:
    try:
        return asker(question)
    except NotAnswered:
        return None


def _tell(process: subprocess.Popen[str], what: dict[str, Any]) -> None:
    assert process.stdin
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str], host: Host) -> dict[str, Any]:
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise HostError(f"The process that was to hold the connection to {host.name} ended", host=host.name)
    said: dict[str, Any] = json.loads(line)
    return said


def _its_error(text: str) -> ClusterfnError:
    error = pickle.loads(base64.b64decode(text))
    assert isinstance(error, ClusterfnError)
    return error


def open_session(host: Host, settings: Settings, holder: HeldConnection, command: str) -> HeldStream | None:
    """A stream through the holder; None if it is there no longer.

    Raises:
        HostError: The host gives no further session on this connection.
    """
    try:
        line = _line(holder)
    except _GONE:
        return None
    try:
        line.send_bytes(json.dumps({"open": command}).encode())
        said = json.loads(line.recv_bytes()) if line.poll(settings.timeout_s + ANSWER_S) else {}
    except _GONE:
        said = {}
    if said.get("ok"):
        return HeldStream(line)
    line.close()
    if "refused" in said:
        raise ssh_errors.no_more_sessions(host, settings.place, said["refused"])
    return None


def _line(holder: HeldConnection) -> Line:
    line: Any = Client(holder.address, authkey=holder.secret.encode() or None)
    opened: Line = line
    return opened


def is_alive(holder: HeldConnection) -> bool:
    """Whether it holds its connection still."""
    return held_connections.is_running(holder.pid) and (sys.platform == "win32" or Path(holder.address).is_socket())


def answers(holder: HeldConnection) -> bool:
    """Whether it can be used now; one that was stopped only seems to be there."""
    return _has_answered(holder, b'{"there": true}')


def log_out(holder: HeldConnection) -> None:
    """End it, with everything that goes through it; one that does not answer is left."""
    _has_answered(holder, b'{"end": true}')


def _has_answered(holder: HeldConnection, asked: bytes) -> bool:
    with contextlib.suppress(*_GONE), _line(holder) as line:
        line.send_bytes(asked)
        return line.poll(CHECK_S)
    return False


def _hang_up(line: Line) -> None:
    """End it for the threads that read or write now; closing alone would leave them waiting."""
    if sys.platform == "win32":
        line.send_bytes(b"")
        return
    with socket.socket(fileno=os.dup(line.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class HeldStream:
    """A session on the connection that another process holds; see `base.Stream`."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._pieces: queue.Queue[bytes] = queue.Queue(_PIECES)
        self._rest = b""
        self._said = b""
        self._closed = False
        self._ended = threading.Event()
        self._cause = "the connection was lost"
        self._writing = threading.Lock()
        threading.Thread(target=self._listen, name="clusterfn-held", daemon=True).start()

    def read(self, size: int) -> bytes:
        if not self._rest and not self._closed:
            self._rest = self._pieces.get()
        piece, self._rest = self._rest[:size], self._rest[size:]
        if not piece:
            self._pieces.put(b"")  # for a later read
        return b"" if self._closed else piece

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            if self._closed or self._ended.is_set():
                raise BrokenPipeError("the stream has ended")
            with self._writing:
                if self._line.closed:
                    raise BrokenPipeError("the stream has ended")
                self._line.send_bytes(data[start : start + _PIECE])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            _hang_up(self._line)
        self._wake()

    def _wake(self) -> None:
        """Let go of who waits for a piece, or for room for one."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._pieces.get_nowait()
        with contextlib.suppress(queue.Full):
            self._pieces.put_nowait(b"")

    def cause(self) -> str | None:
        return None if self._closed or not self._ended.wait(STATUS_S) else self._cause

    def stderr(self) -> str:
        return self._said.decode(errors="replace")

    def _listen(self) -> None:
        with contextlib.suppress(*_GONE, ValueError):
            while not self._closed:
                self._take(self._line.recv_bytes())
        self._ended.set()
        self._close_line()
        self._pieces.put(b"")

    def _close_line(self) -> None:
        """Not under a writer: it would go on with a number that is no file any more, or another's."""
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                _hang_up(self._line)
        with self._writing:
            self._line.close()

    def _take(self, data: bytes) -> None:
        kind, piece = data[:1], data[1:]
        if kind == b"o":
            self._pieces.put(piece)
        elif kind == b"e":
            self._said = (self._said + piece)[-STDERR_KEPT:]
        else:
            self._cause = json.loads(piece)["cause"] or self._cause
            raise EOFError
