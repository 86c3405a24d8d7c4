"""JupyterLab in a job: this process carries the browser's connections to it, and ends it when it ends itself."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.kernel.stream import WEB
from clusterfn.errors import ConfigError
from clusterfn.jupyter import kernel_proxy
from clusterfn.jupyter.connection_file import ConnectionFile, listen_on
from clusterfn.jupyter.kernel_job import JobSearch, KernelJob, host_for_kernel

if TYPE_CHECKING:
    from clusterfn.config.options import Options

_IP = "127.0.0.1"
_PROGRAM = "jupyterlab"


class LabProxy(kernel_proxy.KernelProxy):
    """Carries the connections of a browser; Ctrl-C ends JupyterLab and its job.

    Args:
        announce: Called with the host once the job runs.
    """

    title = "JupyterLab"
    on_sigint = "terminate"

    def __init__(self, announce: Callable[[str], None], *rest: Any) -> None:
        super().__init__(*rest)
        self._announce = announce

    def end_kernel(self) -> None:
        """End JupyterLab and its job."""
        self.stream.say(do="end")

    def on_found(self, job: KernelJob) -> None:
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
    try:
        listener = listen_on(_IP, port)
    except OSError as error:
        raise ConfigError(
            f"port {port} of this machine cannot be used: {error.strerror}",
            hint="leave out --port, or name another one",
        ) from error
    token, port = secrets.token_urlsafe(32), listener.getsockname()[1]
    wanted = ConnectionFile(Path(), _IP, (port,), token, "")
    search = JobSearch(token, options, idle_s, _PROGRAM)
    proxy = functools.partial(LabProxy, functools.partial(announce, f"http://{_IP}:{port}/lab?token={token}"))
    return kernel_proxy.run_proxy(wanted, {WEB: listener}, search, proxy)
