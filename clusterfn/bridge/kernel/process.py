"""The process of the kernel: its connection file, its sockets in a private folder, interrupts, and its end."""

import json
import os
import signal
import socket
import subprocess
import sys

from ..supervisor import process_tree
from .stream import CHANNEL_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

_SOCKETS = "k"  # ipykernel appends the number of the channel: k-1 to k-5
_CONNECTION_FILE = "connection.json"
_LAUNCHER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launch.py")


class KernelProcess:
    """One kernel, started at once.

    Args:
        folder: Private to this user, on a disk of this machine, and short: a unix socket's path has at most 107 bytes.
        key: The client's, with which messages are signed.
        scheme: How they are signed.

    Attributes:
        status: Its exit status as subprocess has it; None while it runs.
        is_ready: Whether all of its sockets have been seen.
    """

    def __init__(self, folder: str, key: str, scheme: str) -> None:
        self.status: "Optional[int]" = None
        self.is_ready = False
        self._path = os.path.join(folder, _SOCKETS)
        for number in range(1, len(CHANNEL_NAMES) + 1):  # of the kernel before this one
            if os.path.lexists(self._socket_path(number)):
                os.unlink(self._socket_path(number))
        place = os.path.join(folder, _CONNECTION_FILE)
        facts: "Dict[str, Any]" = {
            "transport": "ipc",
            "ip": self._path,
            "key": key,
            "signature_scheme": scheme,
            "kernel_name": "",
        }
        facts.update(("%s_port" % name, number) for number, name in enumerate(CHANNEL_NAMES, 1))
        with open(place, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            json.dump(facts, file)
        self._process = subprocess.Popen(
            [sys.executable, _LAUNCHER, "-f", place], stdin=subprocess.DEVNULL,
            start_new_session=True, env=_environment(),
        )  # fmt: skip

    def _socket_path(self, channel: int) -> str:
        return "%s-%d" % (self._path, channel)

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self, channel: int) -> "Optional[socket.socket]":
        """Connect to a channel; None as long as the kernel does not listen."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self._socket_path(channel))
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            return None
        return sock

    def has_ended(self) -> bool:
        """Whether the kernel has ended."""
        if self.status is None:
            self.status = self._process.poll()
        return self.status is not None

    def interrupt(self) -> None:
        """Send SIGINT to the kernel and to the programs that it runs; that of an ended one is no error."""
        if not self.has_ended():
            try:
                os.killpg(self.pid, signal.SIGINT)
            except ProcessLookupError:
                return

    def end(self) -> None:
        """Kill the kernel and all that it has started: this process has no other descendants."""
        process_tree.end(lambda: process_tree.descendants(os.getpid()), self._reap)

    def _reap(self) -> None:
        """Collect the kernel, and orphans that this process adopted."""
        self.has_ended()
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:  # between the two looks
                self.status = self._process.returncode = -signal.SIGKILL


def _environment() -> "Dict[str, str]":
    """Return the job's own variables, and the parent's pid: the kernel ends if that process does."""
    env = dict(os.environ)
    env["JPY_PARENT_PID"] = str(os.getpid())
    return env


def how_it_ended(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return "exit status %d" % status
    try:
        return signal.Signals(-status).name
    except ValueError:
        return "signal %d" % -status
