"""The scheduler of dask as the process that a job holds."""

import json
import os
import socket
import sys

from .process import HeldProcess
from .stream import WEB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .carried import SocketWatcher
    from .process import Activity

FACTS, DASHBOARD = "dask.json", "dashboard"
CONNECT_S = 1.0
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dask_program.py")


class DaskProcess(HeldProcess):
    """One scheduler, whose settings and certificate are variables of the job.

    Args:
        folder: Private to this user, on a disk of this machine, and short.
    """

    title = "dask's scheduler"

    def __init__(self, folder: str, _key: str, _scheme: str) -> None:
        self._folder = folder
        for name in (FACTS, DASHBOARD):  # of the scheduler before this one
            if os.path.lexists(os.path.join(folder, name)):
                os.unlink(os.path.join(folder, name))
        HeldProcess.__init__(self, [sys.executable, _PROGRAM, "scheduler", folder], dict(os.environ))

    def socket_path(self, channel: int) -> str:
        return os.path.join(self._folder, DASHBOARD)

    def connect(self, channel: int) -> "Optional[socket.socket]":
        """Connect to the scheduler or its dashboard; None as long as it does not listen."""
        if channel == WEB:
            return HeldProcess.connect(self, channel)
        try:
            with open(os.path.join(self._folder, FACTS), encoding="utf-8") as file:
                facts = json.load(file)
            return socket.create_connection((facts["ip"], facts["port"]), CONNECT_S)
        except OSError:  # it does not listen yet, or is too busy to accept: the next look tries again
            return None

    def was_shut_down(self) -> bool:
        return self.status == 0  # by its client

    def start_activity(self, watcher: "SocketWatcher") -> "Optional[Activity]":
        """Return None: it is in use as long as its client is connected."""
        return None
