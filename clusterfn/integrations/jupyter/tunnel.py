"""A tunnel to a port of a running job: local connections travel through the connection to its host.

It is the stream of a Jupyter kernel without a kernel: a program next to the job connects to the port. Connections that
are open when the network fails are closed, and new ones work once it is back.

JupyterLab in a job is reached in the same way, and ends when this process ends.
"""

from __future__ import annotations

import posixpath
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import SHORT
from clusterfn.bridge.kernel.stream import ONLY
from clusterfn.calls.job import Job
from clusterfn.display import console
from clusterfn.errors import ConfigError
from clusterfn.hosts import remote_files
from clusterfn.hosts.host_state import HostState
from clusterfn.integrations.jupyter.jupyter_files import listen_on
from clusterfn.integrations.jupyter.kernel_job import JobSearch, KernelJob, host_for_kernel
from clusterfn.integrations.jupyter.near_end import NearEnd

if TYPE_CHECKING:
    from clusterfn.config.options import Options

IP = "127.0.0.1"


def open_tunnel(job: Job[Any], host: HostState, port: int, local_port: int | None) -> int:
    """Carry connections until Ctrl-C, or until the job has ended; return the exit code.

    Args:
        local_port: Of this machine, 0 for any; None for the same number, or any if that is taken.

    Raises:
        ConfigError: The scheduler has no way into a running job, or the local port is taken.
    """
    listener = _listen("--local-port", local_port, port)
    number = listener.getsockname()[1]
    console.tell(f"http://{IP}:{number} is port {port} of {job.name} ({job.id[:SHORT]}) on {job.host}; Ctrl-C ends it")
    program = host.bridge.words(layout.SUPERVISE, "tunnel", str(port))
    found = KernelJob(job, host, "", (*way_to_node(job, host), *program))
    proxy = NearEnd("the job", {ONLY: listener}, lambda: found, console.warn)
    proxy.last_word = ""
    job.add_done_callback(lambda _: proxy.events.post("terminate"))
    code = proxy.run()
    proxy.close()
    listener.close()
    if job.done():
        console.tell(f"{job.name} has ended, and the tunnel with it")
    return code


def _listen(option: str, port: int | None, usual: int = 0) -> socket.socket:
    try:
        return listen_on(IP, usual if port is None else port)
    except (OSError, OverflowError) as error:
        if port is None:
            return listen_on(IP, 0)
        problem = f"port {port} of this machine cannot be used: {getattr(error, 'strerror', error)}"
        raise ConfigError(problem, hint=f"leave out {option}, or name another one") from error


def way_to_node(job: Job[Any], host: HostState) -> Sequence[str]:
    """Return the command that starts a program beside a running job; () if the agent does so; may raise ConfigError."""
    if not host.scheduler.has_nodes:
        return ()
    (claim,) = remote_files.read_each(host.connection, [posixpath.join(job.folder, layout.CLAIM)])
    join = host.scheduler.join_command((claim or b"").decode("ascii", "replace").strip())
    if not join:
        message = f"{job.name} runs on a compute node, and {host.scheduler.title} starts no program beside it"
        hint = f"clusterfn stack {job.id[:SHORT]} shows where the job is; for a port, have the job listen on its "
        hint += "node's own address, and use ssh -L"
        raise ConfigError(message, host=job.host, job=job.id, hint=hint)
    return join


_PROGRAM = "jupyterlab"


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
    host_for_kernel(options)
    listener = _listen("--port", port)
    token = secrets.token_urlsafe(32)
    port = listener.getsockname()[1]
    search = JobSearch(token, options, idle_s, _PROGRAM)

    def find() -> KernelJob:
        found = search.run()
        # Until JupyterLab listens, the browser's first connection waits.
        announce(f"http://{IP}:{port}/lab?token={token}", found.job.host)
        return found

    lab = NearEnd("JupyterLab", {ONLY: listener}, find, console.warn, (token, ""))
    lab.withdraw = search.withdraw
    code = lab.run()
    lab.flush()
    return code
