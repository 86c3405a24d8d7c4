"""The job of dask's scheduler, or of all of dask: start it, and wait until this process reaches the scheduler in it."""

from __future__ import annotations

import concurrent.futures
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterfn.api.dask.relay import IP, Relay
from clusterfn.api.dask.settings import DaskSettings, run_program
from clusterfn.bridge.kernel.dask_program import UNFIT
from clusterfn.bridge.kernel.stream import DASK, WEB
from clusterfn.calls import console
from clusterfn.calls import payload as payloads
from clusterfn.calls.call import prepare_packed
from clusterfn.config.job_spec import KernelSpec
from clusterfn.errors import ClusterfnError, EnvironmentBuildError
from clusterfn.hosts.host_state import CALLER
from clusterfn.jupyter.connection_file import listen_on
from clusterfn.jupyter.kernel_job import await_holder, send_held

if TYPE_CHECKING:
    from clusterfn.calls.job import Job
    from clusterfn.config.options import Options

_UNFIT = f"exit status {UNFIT}"
_END_S = 10.0
_TRIES, _REASON_S, _ANSWER_S = 3, 5.0, 60.0


def listen_for_dask() -> socket.socket:
    """Listen at a port of this machine that only this machine reaches."""
    return listen_on(IP, 0)


class SchedulerJob:
    """The job, from its start to its end.

    Attributes:
        address: Of the scheduler, for this process.
        job: It.
    """

    def __init__(self, options: Options, settings: DaskSettings, idle_s: float, pages: socket.socket | None) -> None:
        # The first node holds the scheduler; the others, if there are any, make this call.
        prepared = prepare_packed(
            run_program, lambda target, _: payloads.pack(run_program, ("node",), {}, target, settings.imports), options
        )
        prepared = settings.of_job(prepared)
        self._security = settings.security
        self._why = ""
        self._has_ended = threading.Event()
        self._relay: Relay | None = None
        self._on_end: Callable[[ClusterfnError], None] = lambda _: None
        self.job = send_held(prepared, KernelSpec("distributed", idle_s, idle_s, CALLER))
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

    def end(self, patience_s: float = 0.0) -> None:
        """End the scheduler and its job; give it so long to end by itself, if it has been told to."""
        if self._relay is not None:
            self._relay.wait(patience_s)
            self._relay.end()
        end_job(self.job, _END_S + patience_s if self._relay is not None and not self._why else 0.0)


def end_job(job: Job[Any], patience_s: float) -> None:
    """Give a job so long to end by itself, then withdraw or stop it; it is no error if the host cannot be asked."""
    if job.running():
        concurrent.futures.wait([job], patience_s)
    try:
        if not job.done() and not job.cancel():
            job.stop()
    except ClusterfnError as error:
        console.warn(f"{job.id} {job.name} on {job.host} could not be stopped, and ends by itself: {error.message}")
