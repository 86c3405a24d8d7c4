"""The job of dask's scheduler: start it, and wait until this process reaches the scheduler through its stream."""

from __future__ import annotations

import concurrent.futures
import json
import posixpath
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from distributed.security import Security

from clusterfn.api.dask.relay import IP, Relay
from clusterfn.bridge.kernel.stream import DASK, WEB
from clusterfn.calls import console, job_display
from clusterfn.calls import payload as payloads
from clusterfn.calls.call import Prepared, prepare_packed, send_call
from clusterfn.config.spec import KernelSpec
from clusterfn.errors import ClusterfnError, ConfigError, EnvironmentBuildError
from clusterfn.hosts.host_state import CALLER
from clusterfn.jupyter.connection_file import listen_on
from clusterfn.jupyter.kernel_job import await_holder

if TYPE_CHECKING:
    from clusterfn.calls.job import Job
    from clusterfn.config.options import Options
    from clusterfn.hosts.host_state import HostState

_VARIABLE, _TLS_VARIABLE = "CLUSTERFN_DASK", "CLUSTERFN_DASK_TLS"  # as dask_program.py reads them
_PROGRAM = "_clusterfn/bridge/kernel/dask_program.py"
_UNFIT = "exit status 78"
_PACKAGES = ("dask", "distributed")
_END_S = 10.0
_TRIES, _REASON_S, _ANSWER_S = 3, 5.0, 60.0


@dataclass(frozen=True)
class DaskSettings:
    """What the scheduler and all workers of one block have in common.

    Attributes:
        imports: The user's own modules that tasks import.
        interface: The network interface of the nodes; "" for the one of their names.
        dashboard: The port of this machine for a browser; 0 for no dashboard.
        security: The certificate of this block alone, and its key.
    """

    imports: Sequence[str]
    interface: str
    dashboard: int
    security: Security

    def of_job(self, prepared: Prepared) -> Prepared:
        """Return a job that has these settings as variables, and the key as a secret."""
        given = self.security.get_tls_config_for_role("client")
        settings = {
            "versions": {name: metadata.version(name) for name in _PACKAGES},
            "dashboard": self.dashboard,
            "interface": self.interface,
            "is_one_machine": not prepared.session.scheduler.has_nodes,
            "path": list(prepared.job.sys_path),
        }
        job = replace(
            prepared.job,
            env={**prepared.job.env, _VARIABLE: json.dumps(settings)},
            secrets={**prepared.job.secrets, _TLS_VARIABLE: json.dumps({"cert": given["cert"], "key": given["key"]})},
        )
        return replace(prepared, job=job)


def program_of(session: HostState) -> str:
    """Return the path of the program that runs dask's processes on a host."""
    return posixpath.join(session.bridge, _PROGRAM)


def listen_for_dask() -> socket.socket:
    """Listen at a port of this machine that only this machine reaches."""
    return listen_on(IP, 0)


def refuse_other_python(prepared: Prepared) -> None:
    """Reject an environment in which dask could not load the tasks.

    Raises:
        ConfigError: It has another minor version of Python.
    """
    there = prepared.ready.interpreter.version
    if there != CALLER:
        raise ConfigError(
            f"dask needs the same Python on both sides: the environment has {there[0]}.{there[1]}, this is "
            f"{CALLER[0]}.{CALLER[1]}",
            host=prepared.session.host.name,
            hint=f"use an environment with Python {CALLER[0]}.{CALLER[1]}",
        )


class SchedulerJob:
    """The job, from its start to its end.

    Attributes:
        address: Of the scheduler, for this process.
        job: It.
    """

    def __init__(self, options: Options, settings: DaskSettings, idle_s: float, pages: socket.socket | None) -> None:
        prepared = prepare_packed(
            len, lambda target, _: payloads.pack(len, ((),), {}, target, settings.imports), options
        )
        refuse_other_python(prepared)
        held = KernelSpec("distributed", idle_s, idle_s, CALLER)
        prepared = replace(prepared, job=replace(prepared.job, kernel=held))
        self._security = settings.security
        self._why = ""
        self._has_ended = threading.Event()
        self._relay: Relay | None = None
        self._on_end: Callable[[ClusterfnError], None] = lambda _: None
        self.job: Job[Any]
        self.job, _ = send_call(settings.of_job(prepared))
        job_display.forget_going(self.job)
        console.tell(f"{self.job.id} {prepared.job.name} on {self.job.host}")
        listeners = {DASK: listen_for_dask(), **({WEB: pages} if pages is not None else {})}
        self.address = "tls://{}:{}".format(*listeners[DASK].getsockname()[:2])
        try:
            found = await_holder(self.job, prepared.session)
        except BaseException:  # Ctrl-C while it waits in the queue, say
            for each in listeners.values():
                each.close()
            self.end()
            raise
        self._relay = Relay(found, listeners, self._ended)

    def await_scheduler(self) -> None:
        """Wait until the scheduler has answered with its certificate.

        Raises:
            ClusterfnError: It has ended before that.
        """
        ip, _, port = self.address.rpartition("/")[2].partition(":")
        context = self._security.get_connection_args("client")["ssl_context"]
        for _ in range(_TRIES):
            try:
                with socket.create_connection((ip, int(port)), _ANSWER_S) as plain, context.wrap_socket(plain):
                    return
            except OSError:  # the connection closes a moment before the reason comes
                if self._has_ended.wait(_REASON_S):
                    break
        raise self.error()

    def on_end(self, report: Callable[[ClusterfnError], None]) -> None:
        """Call `report` from another thread if the scheduler ends before `end`."""
        self._on_end = report
        if self._why:
            report(self.error())

    def error(self) -> ClusterfnError:
        """Return the error that says why it has ended."""
        host, job = self.job.host, self.job.id
        if _UNFIT in self._why:
            return EnvironmentBuildError(
                self._why.splitlines()[-1].strip(), host=host, job=job,
                hint="install the same versions on both sides: pip install dask==… distributed==…",
            )  # fmt: skip
        return ClusterfnError(self._why or "dask's scheduler does not answer", host=host, job=job)

    def _ended(self, why: str) -> None:
        self._why = why
        self._has_ended.set()
        self._on_end(self.error())

    def end(self) -> None:
        """End the scheduler and its job."""
        if self._relay is not None:
            self._relay.end()
        end_job(self.job, _END_S if self._relay is not None and not self._why else 0.0)


def end_job(job: Job[Any], patience_s: float) -> None:
    """Give a job so long to end by itself, then withdraw or stop it; it is no error if the host cannot be asked."""
    if job.running():
        concurrent.futures.wait([job], patience_s)
    try:
        if not job.done() and not job.cancel():
            job.stop()
    except ClusterfnError as error:
        console.warn(f"{job.id} {job.name} on {job.host} could not be stopped, and ends by itself: {error.message}")
