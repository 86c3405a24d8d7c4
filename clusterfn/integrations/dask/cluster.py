"""dask's view of the jobs of a block: how many workers there are, which have ended, and when to start more.

It is a `SpecCluster` of dask, so `scale` and `adapt` are dask's own where each worker is a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed.core import Status, rpc
from distributed.deploy.spec import ProcessInterface, SpecCluster
from distributed.security import Security

from clusterfn.display import console
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.integrations.dask.jobs import WorkerJob, WorkerJobs
from clusterfn.integrations.jupyter.kernel_job import reason_of_end

# So many jobs of workers may end in a row before any worker has connected; then the block fails.
FAILURES = 3
_AGAIN_S = 1.0
_LOST = "distributed.deploy.lost-worker-timeout"


class ConnectedScheduler(ProcessInterface):  # type: ignore[misc]  # dask has no types
    """The scheduler, which runs already; the block ends it.

    Args:
        address: Its address for this process.
    """

    def __init__(self, address: str, security: Security) -> None:
        super().__init__()
        self.external_address = address
        self._security = security

    async def start(self) -> None:
        """Ask it for its address on the host, to which workers connect."""
        arguments = self._security.get_connection_args("client")
        async with rpc(self.external_address, connection_args=arguments) as scheduler:
            self.address = (await scheduler.identity())["address"]
        await super().start()


class ConnectedCluster(SpecCluster):  # type: ignore[misc]  # dask has no types
    """A scheduler that runs already, and its workers.

    Args:
        address: The scheduler's, for this process.
        security: The certificate of the block.
        workers: The first workers that this process starts, by name, as dask describes them.
        worker: The next ones.
    """

    def __init__(
        self, address: str, security: Security, workers: Mapping[str, Any], worker: Mapping[str, Any] | None
    ) -> None:
        # dask's constructor starts the workers, and their callbacks read this attribute.
        self.is_ending = False
        scheduler = {"cls": ConnectedScheduler, "options": {"address": address, "security": security}}
        super().__init__(workers=workers, worker=worker, scheduler=scheduler, security=security, name="clusterfn")

    def begin_end(self, is_reachable: bool) -> set[str]:
        """Prepare `close`: all workers end with their scheduler, and none is asked to hand over what it holds.

        Args:
            is_reachable: Whether the scheduler can be told to end.

        Returns:
            The names of the workers that are connected, and so will end.
        """
        self.is_ending = True
        self.shutdown_scheduler = is_reachable
        if self.scheduler is not None:
            self.scheduler.status = Status.closed
        return {each["name"] for each in self.scheduler_info["workers"].values()}


class AllocationCluster(ConnectedCluster):
    """A scheduler, and workers that are parts of its job: their number does not change."""

    def __init__(self, address: str, security: Security) -> None:
        super().__init__(address, security, {}, None)

    def scale(self, n: int = 0, memory: Any = None, cores: Any = None) -> None:
        """Reject another number; dask itself calls this while the block ends."""
        if self.status == Status.running:
            raise _fixed("scale")

    def adapt(self, *args: Any, **options: Any) -> None:
        """Reject another number."""
        raise _fixed("adapt")


def _fixed(word: str) -> ConfigError:
    message = f"client.cluster.{word}(): nodes= has fixed the number of workers of this block"
    return ConfigError(message, hint="leave nodes= out of dask_client(): each worker is then a job of its own")


class JobsCluster(ConnectedCluster):
    """A scheduler, and workers that are jobs.

    Args:
        address: The scheduler's, for this process.
        security: The certificate of the block.
        jobs: What sends the jobs of workers.
        count: How many workers there are at first.
        on_failure: Called in another thread with why there will be no workers.
    """

    def __init__(
        self, address: str, security: Security, jobs: WorkerJobs, count: int,
        on_failure: Callable[[ClusterfnError], None],
    ) -> None:  # fmt: skip
        self._failures = 0
        self._on_failure = on_failure
        options = {"jobs": jobs, "report": self._on_worker_end, "retire": self._retire}
        worker = {"cls": WorkerJob, "options": options}
        workers = {self._new_worker_name(number): worker for number in range(count)}
        super().__init__(address, security, workers, worker)

    def _new_worker_name(self, worker_number: int) -> str:
        return f"dask-worker-{worker_number}"

    async def _retire(self, name: str) -> bool:
        if self.is_ending:
            return False
        await self.scheduler_comm.retire_workers(names=[name], close_workers=True, remove=True)
        return True

    def _on_worker_end(self, worker: WorkerJob) -> None:
        """Replace a worker whose job has ended, unless none of the last ones has got as far as to connect."""
        if self.is_ending or self.status != Status.running:
            return
        error = worker.error
        if error is None and worker.job is not None:
            # A worker ends without an error when dask has closed it, or at its time limit.
            is_usual = not worker.job.cancelled() and worker.job.exception(0) is None
            error = None if is_usual else reason_of_end(worker.job)
        if error is not None:
            self._failures += 1
            if self._failures >= FAILURES or worker.job is None:
                self._on_failure(error)
                return
            console.warn(f"{worker.name} has ended, and is started again: {error}")
        asyncio.get_running_loop().call_later(_AGAIN_S, self._replace, worker)

    def _replace(self, worker: WorkerJob) -> None:
        if self.workers.get(worker.name) is worker and self.status == Status.running:
            del self.workers[worker.name]
            self._correct_state()

    def _update_worker_status(self, op: str, msg: Any) -> None:
        super()._update_worker_status(op, msg)
        if op == "add":
            self._failures = 0
        elif op == "remove" and not self.is_ending:
            # dask forgets a worker that has not come back by then, and starts none in its place.
            again_s = parse_timedelta(dask.config.get(_LOST)) + _AGAIN_S
            asyncio.get_running_loop().call_later(again_s, self._start_lacking)

    def _start_lacking(self) -> None:
        if self.status == Status.running and not self.is_ending:
            self._correct_state()
