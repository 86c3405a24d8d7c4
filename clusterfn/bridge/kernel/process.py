"""The process that a job holds: a kernel, JupyterLab, or dask's scheduler, its sockets, interrupts, and its end.

A kernel is idle by what it publishes to its clients: cells, widgets and completion count. What clients ask at intervals
leaves it idle. JupyterLab listens at a unix socket, and is idle when its kernels are.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading

from ..supervisor import process_tree
from ..supervisor.limits import clock
from .stream import CHANNEL_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

# ipykernel appends the number of the channel: k-1 to k-5. A short name, because a socket's path has at most 107 bytes.
_SOCKETS = "k"
_NOT_COUNTED = ("kernel_info_request", "comm_info_request", "usage_request", "debug_request", "shutdown_request", "")
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

    def idle_s(self) -> float:
        """Return the seconds since it has last done something for its user; 0 while it does."""
        return 0.0

    def note_output(self, parts: "List[bytes]") -> None:
        """Take note of a message that it publishes to its clients."""

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
        for pid, _, _ in process_tree.collected():
            # The process ended between `has_ended` and `waitpid`, which has taken its status away from `subprocess`.
            if pid == self.pid:
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
        # The kernel before this one may have left its sockets, and a bind to an existing file fails.
        for number in range(1, len(CHANNEL_NAMES) + 1):
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
        # ipykernel ends when the process with this pid does. Its debugger is off, so a warning about it would mislead.
        env = dict(os.environ, JPY_PARENT_PID=str(os.getpid()), PYDEVD_DISABLE_FILE_VALIDATION="1")
        HeldProcess.__init__(self, [sys.executable, _LAUNCHER, "-f", place], env)
        self._activity = KernelActivity()

    def socket_path(self, channel: int) -> str:
        return "%s-%d" % (self._path, channel)

    def idle_s(self) -> float:
        return self._activity.idle_s()

    def note_output(self, parts: "List[bytes]") -> None:
        self._activity.note(parts)


class KernelActivity:
    """Which requests a kernel works on, by the `status` messages that it publishes for each."""

    def __init__(self) -> None:
        self._busy: "Set[str]" = set()
        self._idle_since = clock.now()

    def idle_s(self) -> float:
        """Return the seconds since the kernel has last done something for a user; 0 while it does."""
        return 0.0 if self._busy else clock.now() - self._idle_since

    def note(self, parts: "List[bytes]") -> None:
        """Take note of a message."""
        if len(parts) < 7 or not parts[0].endswith(b".status"):
            return
        parent, content = json.loads(parts[4].decode()), json.loads(parts[6].decode())
        if parent.get("msg_type", "") in _NOT_COUNTED:
            return
        if content.get("execution_state") == "busy":
            self._busy.add(parent["msg_id"])
        else:
            self._busy.discard(parent["msg_id"])
            self._idle_since = clock.now()


def how_it_ended(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return "exit status %d" % status
    try:
        return signal.Signals(-status).name
    except ValueError:
        return "signal %d" % -status


FACTS = "dask.json"
CONNECT_S = 1.0
_DASK_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dask_program.py")


class DaskProcess(HeldProcess):
    """One scheduler, whose settings and certificate are variables of the job. It is never idle while it has a client.

    Args:
        folder: Private to this user, on a disk of this machine, and short.
    """

    title = "dask's scheduler"

    def __init__(self, folder: str, _key: str, _scheme: str) -> None:
        self._facts = os.path.join(folder, FACTS)
        # The scheduler before this one may have left this file, by which a client would connect too early.
        if os.path.lexists(self._facts):
            os.unlink(self._facts)
        HeldProcess.__init__(self, [sys.executable, _DASK_PROGRAM, "scheduler", folder], dict(os.environ))

    def connect(self, channel: int) -> "Optional[socket.socket]":
        """Connect to the scheduler; None as long as it does not listen."""
        try:
            with open(self._facts, encoding="utf-8") as file:
                facts = json.load(file)
            return socket.create_connection((facts["ip"], facts["port"]), CONNECT_S)
        except OSError:
            # The scheduler does not listen yet, or is too busy to accept. The next look retries.
            return None

    def was_shut_down(self) -> bool:
        # dask's scheduler exits with status 0 only when its client has closed it.
        return self.status == 0


_LAB_SOCKET = "lab"
_LOOK_S = 15.0
_ANSWER_S = 10.0


class LabProcess(HeldProcess):
    """One JupyterLab, whose files are those of the folder in which this process runs.

    Args:
        folder: Private to this user, on a disk of this machine, and short.
        token: What a browser must know.
    """

    title = "JupyterLab"

    def __init__(self, folder: str, token: str, _scheme: str) -> None:
        self._path = os.path.join(folder, _LAB_SOCKET)
        if os.path.lexists(self._path):
            os.unlink(self._path)
        settings = {"sock": self._path, "sock_mode": "0600", "root_dir": os.getcwd(), "base_url": "/", "certfile": ""}
        argv = [sys.executable, "-m", "jupyterlab", "--no-browser"]
        argv += ["--ServerApp.%s=%s" % setting for setting in settings.items()]
        argv += ["--allow-root"] if os.geteuid() == 0 else []
        # Every user can read arguments, so the token is a variable. The server writes it into its runtime folder.
        env = dict(os.environ, JUPYTER_TOKEN=token, JUPYTER_RUNTIME_DIR=os.path.join(folder, "runtime"))
        HeldProcess.__init__(self, argv, env)
        self._activity = LabActivity(self._path, token)

    def socket_path(self, channel: int) -> str:
        return self._path

    def end(self) -> None:
        self._activity.close()
        HeldProcess.end(self)

    def was_shut_down(self) -> bool:
        # A user who shuts JupyterLab down from its menu makes it exit with status 0.
        return self.status == 0

    def idle_s(self) -> float:
        return self._activity.idle_s()


class LabActivity:
    """Asks JupyterLab, now and then and in a thread, what its kernels and terminals do.

    An open page asks the server all the time, which is no sign of a user.
    """

    def __init__(self, path: str, token: str, look_s: float = _LOOK_S) -> None:
        self._path = path
        self._token = token
        self._look_s = look_s
        self._active_at = clock.now()
        self._states: "Set[Tuple[str, str]]" = set()
        self._closed = threading.Event()
        looking = threading.Thread(target=self._look, name="clusterfn-lab-activity")
        looking.daemon = True
        looking.start()

    def idle_s(self) -> float:
        """Return the seconds since a kernel or terminal was last seen at work."""
        return clock.now() - self._active_at

    def close(self) -> None:
        """Stop asking."""
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(self._look_s):
            try:
                resources = self._ask("kernels") + self._ask("terminals")
            except (OSError, ValueError, http.client.HTTPException):
                # JupyterLab is still starting, or too busy to answer. The next look asks again.
                continue
            states = {
                (str(resource.get("id") or resource.get("name")), str(resource.get("last_activity")))
                for resource in resources
            }
            if states != self._states or any(resource.get("execution_state") == "busy" for resource in resources):
                self._states = states
                self._active_at = clock.now()

    def _ask(self, kind: str) -> "List[Any]":
        connection = http.client.HTTPConnection("localhost", timeout=_ANSWER_S)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(_ANSWER_S)
        try:
            connection.sock.connect(self._path)
            connection.request("GET", "/api/%s" % kind, headers={"Authorization": "token %s" % self._token})
            answer = connection.getresponse()
            resources = json.loads(answer.read().decode()) if answer.status == 200 else []
        finally:
            connection.close()
        return resources if isinstance(resources, list) else []
