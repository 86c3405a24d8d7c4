"""JupyterLab as the process that a job holds: it listens at a unix socket, and is idle when its kernels are."""

import http.client
import json
import os
import socket
import sys
import threading

from ..supervisor.limits import clock
from .process import Activity, HeldProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Set, Tuple

    from .carried import SocketWatcher

_SOCKET = "lab"
_LOOK_S, _ANSWER_S = 15.0, 10.0


class LabProcess(HeldProcess):
    """One JupyterLab, whose files are those of the folder in which this process runs.

    Args:
        folder: Private to this user, on a disk of this machine, and short.
        token: What a browser must know.
    """

    title = "JupyterLab"

    def __init__(self, folder: str, token: str, _scheme: str) -> None:
        self._path = os.path.join(folder, _SOCKET)
        self._token = token
        if os.path.lexists(self._path):
            os.unlink(self._path)
        settings = {"sock": self._path, "sock_mode": "0600", "root_dir": os.getcwd(), "base_url": "/", "certfile": ""}
        argv = [sys.executable, "-m", "jupyterlab", "--no-browser"]
        argv += ["--ServerApp.%s=%s" % each for each in settings.items()]
        argv += ["--allow-root"] if os.geteuid() == 0 else []
        # Every user can read arguments, so the token is a variable. The server writes it into its runtime folder.
        env = dict(os.environ, JUPYTER_TOKEN=token, JUPYTER_RUNTIME_DIR=os.path.join(folder, "runtime"))
        HeldProcess.__init__(self, argv, env)

    def socket_path(self, channel: int) -> str:
        return self._path

    def was_shut_down(self) -> bool:
        # A user who shuts JupyterLab down from its menu makes it exit with status 0.
        return self.status == 0

    def start_activity(self, watcher: "SocketWatcher") -> "Optional[Activity]":
        return LabActivity(self._path, self._token)


class LabActivity(Activity):
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
            states = {(str(each.get("id") or each.get("name")), str(each.get("last_activity"))) for each in resources}
            if states != self._states or any(each.get("execution_state") == "busy" for each in resources):
                self._states, self._active_at = states, clock.now()

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
