"""A held connection to this machine, without ssh: a keeper of programs that wait for a shell command."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterfn.hosts.transports import held_connections, standby
from clusterfn.hosts.transports.base import Standby
from clusterfn.hosts.transports.held_connections import HeldConnection
from tests.waiting import until

MARKER = "0123456789abcdef"
_LINE = "bytes(iter(lambda: os.read(0, 1)[0], 10))"
WAITS = f"os.write(1, b'noise' + {_LINE} + b'\\n'); os.execvp('sh', ['sh', '-c', {_LINE}])"


def is_waiting(folder: Path) -> bool:
    """Whether a keeper in this folder says that a command waits."""
    for address in folder.glob("*.a"):
        with socket.socket(socket.AF_UNIX) as line, contextlib.suppress(OSError):
            line.settimeout(5)
            line.connect(str(address))
            line.sendall(b"P")
            return line.recv(16).endswith(b" 1\n")
    return False


is_running = held_connections.is_running
TRIES = standby.TRIES
_TIMES = {"pause": "PAUSE_S", "stays fresh": "FRESH_S", "starts": "START_S", "answers": "ANSWER_S"}


def wait_for(patch: pytest.MonkeyPatch, what: str, seconds: float) -> None:
    """Let keepers wait that long for it."""
    patch.setattr(standby, _TIMES[what], seconds)


class Held:
    """What is held, and what its keeper does."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder = folder
        self.master = socket.socket(socket.AF_UNIX)
        path = held_connections.socket_path("k" * 16)
        self.master.bind(str(path))
        self.held = HeldConnection("k" * 16, "here", "me@here", os.getpid(), time.time(), 1e6, False, str(path))
        note = f"import os; open({str(folder / 'pids')!r}, 'a').write('%d ' % os.getpid()); "
        self.argv = [sys.executable, "-c", note + program]

    def keep(self, what: str = "agent") -> None:
        first = MARKER.encode() + b"\n"
        standby.keep(self.held, what, self.argv, first, MARKER)

    def take(self, what: str = "agent") -> Standby | None:
        return standby.take(self.held, what)

    def waiting(self) -> Standby:
        """The next one, once it waits."""
        taken: Standby = until(self.take)
        return taken

    def command(self, text: str) -> Standby:
        """The next one, told to run this."""
        taken = self.waiting()
        taken.stream.write(text.encode() + b"\n")
        return taken

    def program(self, text: str) -> list[str]:
        """A program that takes the next one, writes this to it, prints what it says, and stays."""
        code = (
            "import sys, time\nfrom clusterfn.hosts.transports import standby\n"
            "from clusterfn.hosts.transports.held_connections import HeldConnection\n"
            f"held = {self.held!r}\n"
            "while (taken := standby.take(held, 'agent')) is None: time.sleep(0.05)\n"
            "taken.stream.write(sys.argv[1].encode())\n"
            "print(taken.stream.read(100).decode(), flush=True)\n"
            "time.sleep(600)\n"
        )
        return [sys.executable, "-c", code, text]

    def connection_ends_with(self, pid: int) -> None:
        """The connection is that of this process from now on."""
        self.held = self.held._replace(pid=pid)

    def log_out(self) -> None:
        """Wake its keepers, as the end of a login does."""
        standby.wake(self.held.key)

    def pids(self) -> list[int]:
        """Of all that were started so far."""
        path = self.folder / "pids"
        return [int(each) for each in path.read_text().split()] if path.exists() else []

    def becomes_ready(self) -> None:
        """Wait until one waits, and leave it there."""
        until(lambda: is_waiting(self.folder))

    def made(self) -> tuple[int, int]:
        """Which address it is: another keeper makes another, whose inode may have the same number."""
        address = self.address()
        assert address is not None
        return address.stat().st_ino, address.stat().st_ctime_ns

    def keepers(self) -> int:
        """How many there are, for this folder."""
        found = 0
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                is_keeper = b"standby_keeper.py" in (folder / "cmdline").read_bytes()
                found += is_keeper and os.fsencode(self.folder) in (folder / "environ").read_bytes()
        return found

    def address(self) -> Path | None:
        """Where the keeper listens, while it does."""
        return next(iter(self.folder.glob("*.a")), None)

    def end(self) -> None:
        """The connection ends."""
        self.master.close()
        Path(self.held.address).unlink(missing_ok=True)


@contextlib.contextmanager
def held_here(monkeypatch: pytest.MonkeyPatch, program: str = WAITS, idle_s: float = 600.0) -> Iterator[Held]:
    """A held connection of this test alone; nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="cf-", dir="/tmp"))
    monkeypatch.setenv("CLUSTERFN_RUNTIME", str(folder))
    monkeypatch.setattr(standby, "PAUSE_S", 0.05)
    monkeypatch.setattr(standby, "END_S", 1.0)
    monkeypatch.setattr(standby, "IDLE_S", idle_s)
    held = Held(folder, program)
    try:
        yield held
        held.end()
        standby.wake(held.held.key)
        until(lambda: held.address() is None)
        until(lambda: not any(held_connections.is_running(pid) for pid in held.pids()))
    finally:
        held.end()
        shutil.rmtree(folder, ignore_errors=True)
