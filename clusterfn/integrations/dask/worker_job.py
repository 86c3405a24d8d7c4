"""The job of one worker of dask, as dask's own interface to what starts workers sees it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from distributed.core import Status
from distributed.deploy.spec import ProcessInterface

from clusterfn.calls import job_display
from clusterfn.calls import payload as payloads
from clusterfn.calls.call import prepare_packed, send_call
from clusterfn.calls.job import Job, entry_of
from clusterfn.errors import ClusterfnError
from clusterfn.integrations.dask.plan import memory_limit
from clusterfn.integrations.dask.scheduler_job import end_job
from clusterfn.integrations.dask.settings import DaskSettings, run_program

if TYPE_CHECKING:
    from clusterfn.config.options import Options

# A worker has this long to close after the request.
_LEAVE_S = 15.0


class WorkerJobs:
    """Sends the jobs of workers, which differ in their names alone.

    Attributes:
        sent: All that were sent.

    Raises:
        ClusterfnError: They cannot be sent; nothing was.
    """

    def __init__(self, options: Options, settings: DaskSettings) -> None:
        self.sent: list[Job[Any]] = []
        self._imports = settings.imports
        prepared = prepare_packed(run_program, lambda target, _: self._packed(target), options)
        self._prepared = settings.of_job(prepared)

    def send(self, address: str, name: str) -> Job[Any]:
        """Send the job of a worker that connects to the scheduler at this address.

        Raises:
            ClusterfnError: It cannot be sent.
        """
        prepared = self._prepared
        resources = prepared.job.resources
        limit = str(memory_limit(resources.memory_bytes))
        payload = self._packed(None, "worker", address, name, str(resources.cores), limit)
        # All workers run the same source code, although the files may change between two jobs.
        payload = payload._replace(sources=prepared.payload.sources)
        job = prepared.job._replace(id=secrets.token_hex(8), name=name)
        sent, _ = send_call(prepared._replace(payload=payload, job=job))
        self.sent.append(sent)
        job_display.forget_going(entry_of(sent))
        return sent

    def _packed(self, target: tuple[int, int] | None, *words: str) -> payloads.Payload:
        return payloads.pack(run_program, words, {}, target, self._imports)


class WorkerJob(ProcessInterface):  # type: ignore[misc]  # dask has no types
    """One worker.

    Args:
        scheduler: The address of the scheduler, for the host's processes.
        jobs: What sends its job.
        report: Called in dask's thread with this worker when its job has ended without `close`, or cannot be sent.
        retire: Asks the scheduler to let the worker of this name close; false where all of them end together.

    Attributes:
        name: Its name in dask.
        job: Its job, once that is sent.
        error: Why it could not be sent.
    """

    status: Any

    def __init__(
        self,
        scheduler: str,
        name: str,
        jobs: WorkerJobs,
        report: Callable[[WorkerJob], None],
        retire: Callable[[str], Awaitable[bool]],
    ) -> None:
        super().__init__()
        self.name = name
        self.job: Job[Any] | None = None
        self.error: ClusterfnError | None = None
        self._address = scheduler
        self._jobs = jobs
        self._report = report
        self._retire = retire

    async def start(self) -> None:
        """Send the job, and report an error: dask drops an exception that is raised here."""
        loop = asyncio.get_running_loop()

        def on_job_end(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):
                # dask's loop has ended, and with it the block.
                loop.call_soon_threadsafe(self._on_job_end)

        await super().start()
        try:
            self.job = await asyncio.to_thread(self._jobs.send, self._address, self.name)
        except ClusterfnError as error:
            self.error = error
            loop.call_soon(self._on_job_end)
        else:
            self.job.add_done_callback(on_job_end)
            # The worker was closed while its job was being sent.
            if self.status != Status.running:
                await asyncio.to_thread(end_job, self.job, 0.0)

    async def close(self) -> None:
        """Let the worker close, and end its job."""
        if self.status == Status.running:
            self.status = Status.closing
            if self.job is not None and not self.job.done() and await self._retire(self.name):
                await asyncio.to_thread(end_job, self.job, _LEAVE_S)
        await super().close()

    def _on_job_end(self) -> None:
        if self.status == Status.running:
            self.status = Status.failed
            self._report(self)
