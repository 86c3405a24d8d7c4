"""The process that a job holds: a kernel or JupyterLab, its sockets in a private folder, interrupts, and its end."""

import json
import os
import signal
import socket
import subprocess
import sys

from ..supervisor import process_tree
from .activity import KernelActivity
from .stream import CHANNEL_NAMES, IOPUB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Protocol

    from .carried import SocketWatcher

    class Activity(Protocol):
        """What knows how long the held process has done nothing for its user."""

        def idle_s(self) -> float: ...
        def close(self) -> None: ...


_SOCKETS = "k"  # ipykernel appends the number of the channel: k-1 to k-5
_CONNECTION_FILE = "connection.json"
_LAUNCHER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launch.py")


class HeldProcess:
    """A process in a session of its own, started at once.

    Attributes:
        title: What users call it.
        status: Its exit status as subprocess has it; None while it runs.
    """

    title = ""

    def __init__(self, argv: "List[str]", env: "Dict[str, str]") -> None:
        self.status: "Optional[int]" = None
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, env=env)

    @property
    def pid(self) -> int:
        return self._process.pid

    def socket_path(self, channel: int) -> str:
        """Return where it listens for a channel."""
        raise NotImplementedError

    def start_activity(self, watcher: "SocketWatcher") -> "Optional[Activity]":
        """Return what knows how long it has been idle; None as long as it does not listen."""
        raise NotImplementedError

    def was_shut_down(self) -> bool:
        """Return whether its end, without a request that the holder has seen, is what its user wanted."""
        return False

    def connect(self, channel: int) -> "Optional[socket.socket]":
        """Connect to a channel; None as long as it does not listen."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self.socket_path(channel))
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            return None
        return sock

    def has_ended(self) -> bool:
        """Whether it has ended."""
        if self.status is None:
            self.status = self._process.poll()
        return self.status is not None

    def interrupt(self) -> None:
        """Send SIGINT to it and to the programs that it runs; it is no error if it has ended."""
        if not self.has_ended():
            try:
                os.killpg(self.pid, signal.SIGINT)
            except ProcessLookupError:
                return

    def end(self) -> None:
        """Kill it and all that it has started: this process has no other descendants."""
        process_tree.end(lambda: process_tree.descendants(os.getpid()), self._reap)

    def _reap(self) -> None:
        """Collect it, and orphans that this process adopted."""
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


class KernelProcess(HeldProcess):
    """One kernel.

    Args:
        folder: Private to this user, on a disk of this machine, and short: a unix socket's path has at most 107 bytes.
        key: The client's, with which messages are signed.
        scheme: How they are signed.
    """

    title = "the kernel"

    def __init__(self, folder: str, key: str, scheme: str) -> None:
        self._path = os.path.join(folder, _SOCKETS)
        for number in range(1, len(CHANNEL_NAMES) + 1):  # of the kernel before this one
            if os.path.lexists(self.socket_path(number)):
                os.unlink(self.socket_path(number))
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
        # The kernel ends if the process does whose pid it finds; its debugger, which is off, warns of nothing.
        env = dict(os.environ, JPY_PARENT_PID=str(os.getpid()), PYDEVD_DISABLE_FILE_VALIDATION="1")
        HeldProcess.__init__(self, [sys.executable, _LAUNCHER, "-f", place], env)
        self._activity: "Optional[KernelActivity]" = None

    def socket_path(self, channel: int) -> str:
        return "%s-%d" % (self._path, channel)

    def start_activity(self, watcher: "SocketWatcher") -> "Optional[Activity]":
        sock = HeldProcess.connect(self, IOPUB)
        self._activity = None if sock is None else KernelActivity(watcher, sock)
        return self._activity

    def connect(self, channel: int) -> "Optional[socket.socket]":
        if channel == IOPUB and (self._activity is None or not self._activity.is_subscribed()):
            return None
        return HeldProcess.connect(self, channel)


def how_it_ended(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return "exit status %d" % status
    try:
        return signal.Signals(-status).name
    except ValueError:
        return "signal %d" % -status
