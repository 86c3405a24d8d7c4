"""Carry dask's connections between this process and the job of the scheduler, in a thread.

It is the stream of a Jupyter kernel: what was on its way when the network failed arrives once the network is back, and
dask notices nothing but the delay.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clusterfn.calls import console
from clusterfn.jupyter.connection_file import ConnectionFile
from clusterfn.jupyter.kernel_job import KernelJob
from clusterfn.jupyter.kernel_proxy import KernelProxy, link_to

IP = "127.0.0.1"
_END_S = 10.0


class _NoRecord:
    """A scheduler is not started again by another process: nothing is written on this machine."""

    def refuse(self, why: str) -> None:
        """Forget why it ended: the block raises it."""

    def remove(self) -> None:
        """Forget the job: the block ends it."""


class FoundJob:
    """What a `KernelProxy` asks for its job, which is known."""

    def __init__(self, job: KernelJob) -> None:
        self.record = _NoRecord()
        self._job = job

    def run(self) -> KernelJob:
        """Return the job."""
        return self._job


class DaskProxy(KernelProxy):
    """Carries the connections of dask."""

    title = "dask's scheduler"

    def handle_signals(self) -> None:
        """Leave them to the user's program."""

    def end_kernel(self) -> None:
        """End the scheduler and its job."""
        self.stream.say(do="end")


class Relay:
    """A thread that carries the connections to these listeners until the scheduler has ended.

    Args:
        job: Of the scheduler; its holder listens.
        listeners: By the number of their channel.
        on_end: Called in that thread with why the scheduler has ended, unless its client or `end` has ended it.
    """

    def __init__(self, job: KernelJob, listeners: Mapping[int, socket.socket], on_end: Callable[[str], None]) -> None:
        self._listeners = listeners
        self._on_end = on_end
        self._said = ""
        self._is_ending = False
        wanted = ConnectionFile(Path(), IP, (), secrets.token_urlsafe(32), "")
        search: Any = FoundJob(job)
        self._proxy = DaskProxy(wanted, listeners, search, link_to, self._say)
        self._thread = threading.Thread(target=self._run, name="clusterfn-dask", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the scheduler, but not for longer."""
        self._thread.join(seconds)

    def end(self) -> None:
        """End the scheduler and all connections; wait a moment until the host knows it."""
        self._is_ending = True
        self._proxy.events.post_at_once("terminate")
        self._thread.join(_END_S)

    def _run(self) -> None:
        code = self._proxy.run()
        if code and not self._is_ending:
            self._on_end(self._said)
        self._proxy.flush()
        self._proxy.close()
        for each in self._listeners.values():
            each.close()

    def _say(self, sentence: str) -> None:
        self._said = sentence
        if "is lost, and its job keeps running" in sentence or sentence.endswith("is back"):
            console.tell(sentence)
