"""What a block of dask asks for; imports nothing of dask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterfn.config.options import Options
    from clusterfn.config.spec import Host

# The process that watches a worker takes this part of the worker's memory.
_NANNY_BYTES = 200 * 2**20


@dataclass(frozen=True)
class NodeWorkers:
    """The workers on each node of the one job that holds all of dask.

    Attributes:
        count: How many.
        cores: Of each of them, as the others.
        memory_bytes: What was asked for; None for nothing.
        gpus: Its own.
    """

    count: int
    cores: int
    memory_bytes: int | None
    gpus: int

    @classmethod
    def of(cls, count: int, worker: Options, host: Host) -> NodeWorkers:
        """Return so many workers that have what the options ask for, or else the host's defaults."""
        gpus = host.defaults.gpus if worker.gpus is None else worker.gpus
        memory_bytes = worker.memory_bytes or host.defaults.memory_bytes
        return cls(count, worker.cores or host.defaults.cores, memory_bytes, gpus)

    def job_options(self, worker: Options, nodes: int, scheduler_bytes: int) -> Options:
        """Return the options of the job; the scheduler has its memory beside the workers', and shares their cores."""
        memory_bytes = None if self.memory_bytes is None else self.count * self.memory_bytes + scheduler_bytes
        return worker._replace(
            nodes=nodes, cores=self.count * self.cores, memory_bytes=memory_bytes, gpus=self.count * self.gpus,
            name="dask",
        )  # fmt: skip


@dataclass(frozen=True)
class DaskPlan:
    """What a block asks for.

    Attributes:
        scheduler: The options of the scheduler's job, which holds the workers too if there are `node_workers`.
        worker: Those of the job of each other worker.
        node_workers: The workers on each node of the scheduler's job; None if each is a job.
        least: The smallest number of workers.
        most: The largest.
        adapts: Whether dask chooses the number.
        imports: The user's own modules that tasks import.
        interface: The network interface of the nodes; "" for the one of their names.
        idle_s: All ends after so long without a connection to this process.
        dashboard: Whether to offer dask's pages.
    """

    scheduler: Options
    worker: Options
    node_workers: NodeWorkers | None
    least: int
    most: int
    adapts: bool
    imports: Sequence[str]
    interface: str
    idle_s: float
    dashboard: bool


def memory_limit(asked_bytes: int | None) -> int:
    """Return at how many bytes a worker ends that has this memory together with its nanny; 0 for no limit."""
    job_bytes = asked_bytes or 0
    return max(job_bytes - _NANNY_BYTES, job_bytes * 3 // 4)
