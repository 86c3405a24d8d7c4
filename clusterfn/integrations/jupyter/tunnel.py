"""A tunnel to a port of a running job: local connections travel through the connection to its host.

It is the stream of a Jupyter kernel without a kernel: a program next to the job connects to the port. Connections that
are open when the network fails are closed, and new ones work once it is back.

JupyterLab in a job is reached in the same way, and ends when this process ends.
"""

from __future__ import annotations

import functools
import posixpath
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.kernel.carried import CarriedConnections
from clusterfn.bridge.kernel.stream import WEB, FrameStream
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls.job import Job
from clusterfn.display import console
from clusterfn.errors import ConfigError
from clusterfn.hosts import remote_files
from clusterfn.hosts.host_state import HostState
from clusterfn.integrations.jupyter.connection_file import ConnectionFile, listen_on
from clusterfn.integrations.jupyter.kernel_job import FoundJob, JobSearch, KernelJob, host_for_kernel
from clusterfn.integrations.jupyter.kernel_proxy import LIMIT_BYTES, KernelProxy, link_to, run_proxy

if TYPE_CHECKING:
    from clusterfn.config.options import Options

IP = "127.0.0.1"


class TunnelProxy(KernelProxy):
    """Carries the connections of one local port until Ctrl-C, or until the job has ended."""

    title = "the job"
    on_sigint = "terminate"

    def end_kernel(self) -> None:
        """Leave the job alone: its tunnel ends with the connection."""

    def take_job(self, job: KernelJob) -> None:
        """End when the job does."""
        job.job.add_done_callback(lambda _: self.events.post_at_once("terminate"))

    def take_word(self, facts: dict[str, Any]) -> None:
        """Show why a connection was closed."""
        self._say(in_one_line(str(facts.get("closed", ""))))

    def _lose(self, why: str) -> None:
        """Start again with a fresh stream: the program at the far end has gone, with what it had received."""
        self._carried.close()
        self.stream = FrameStream()
        self._carried = CarriedConnections(self._watcher, self.stream, LIMIT_BYTES)
        super()._lose(why)


def open_tunnel(job: Job[Any], session: HostState, port: int, local_port: int | None) -> int:
    """Carry connections until Ctrl-C, or until the job has ended; return the exit code.

    Args:
        local_port: Of this machine, 0 for any; None for the same number, or any if that is taken.

    Raises:
        ConfigError: The scheduler has no way into a running job, or the local port is taken.
    """
    listener = _listen("--local-port", local_port, port)
    number = listener.getsockname()[1]
    console.tell(f"http://{IP}:{number} is port {port} of {job.name} ({job.id[:SHORT]}) on {job.host}; Ctrl-C ends it")
    listeners: Mapping[int, socket.socket] = {WEB: listener}
    search: Any = FoundJob(KernelJob(job, session, "", _far_end(job, session, port), ""))
    # The protocol of kernels demands a key, which the program at the far end ignores.
    connection_file = ConnectionFile(Path(), IP, (number,), secrets.token_urlsafe(16), "")
    proxy = TunnelProxy(connection_file, listeners, search, link_to, console.warn)
    code = proxy.run()
    proxy.close()
    listener.close()
    if job.done():
        console.tell(f"{job.name} has ended, and the tunnel with it")
    return code


def _listen(option: str, port: int | None, usual: int = 0) -> socket.socket:
    try:
        return listen_on(IP, usual if port is None else port)
    except OSError as error:
        if port is None:
            return listen_on(IP, 0)
        problem = f"port {port} of this machine cannot be used: {error.strerror}"
        raise ConfigError(problem, hint=f"leave out {option}, or name another one") from error


def _far_end(job: Job[Any], session: HostState, port: int) -> tuple[str, ...]:
    """Return the command that runs next to the job, and carries to the port."""
    program = tuple(session.bridge.words(layout.SUPERVISE, "tunnel", str(port)))
    if not session.scheduler.has_nodes:
        return program
    (claim,) = remote_files.read_each(session.connection, [posixpath.join(job.folder, layout.CLAIM)])
    join = session.scheduler.join_command((claim or b"").decode("ascii", "replace").strip())
    if not join:
        raise ConfigError(
            f"{job.name} runs on a compute node, and {session.scheduler.title} starts no program beside it",
            host=job.host, job=job.id, hint="have the job listen on its node's own address, and use ssh -L for that",
        )  # fmt: skip
    return (*join, *program)


_PROGRAM = "jupyterlab"


class LabProxy(KernelProxy):
    """Carries the connections of a browser; Ctrl-C ends JupyterLab and its job.

    Args:
        announce: Called with the host once the job runs.
    """

    title = "JupyterLab"
    on_sigint = "terminate"

    def __init__(self, announce: Callable[[str], None], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._announce = announce

    def end_kernel(self) -> None:
        """End JupyterLab and its job."""
        self.stream.say(do="end")

    def take_job(self, job: KernelJob) -> None:
        """Say so: until JupyterLab listens, the browser's first connection waits."""
        self._announce(job.job.host)


def open_lab(options: Options, idle_s: float, port: int, announce: Callable[[str, str], None]) -> int:
    """Run JupyterLab in a job until Ctrl-C, or until it ends by itself; return the exit code.

    Args:
        idle_s: It ends after so long in which no cell ran and no terminal wrote.
        port: Of this machine, for the browser; 0 for any.
        announce: Called once the job runs, with what a browser opens (it has the token by which JupyterLab knows its
            user) and the host.

    Raises:
        ConfigError: The host has no way to carry connections into a job, or the port is taken.
    """
    host_for_kernel(options.host)
    listener = _listen("--port", port)
    token, port = secrets.token_urlsafe(32), listener.getsockname()[1]
    connection_file = ConnectionFile(Path(), IP, (port,), token, "")
    search = JobSearch(token, options, idle_s, _PROGRAM)
    proxy = functools.partial(LabProxy, functools.partial(announce, f"http://{IP}:{port}/lab?token={token}"))
    return run_proxy(connection_file, {WEB: listener}, search, proxy)
