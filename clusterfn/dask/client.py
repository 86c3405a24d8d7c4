"""`clusterfn.dask_client`: check what it is asked for, start dask on a host, and end it with the block."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from clusterfn.api.decorator import inside_job
from clusterfn.bridge.job_states import PENDING
from clusterfn.calls import console, user_modules
from clusterfn.config import config_file
from clusterfn.config.options import JobOptions, Options, Time, parse_options
from clusterfn.config.units import parse_memory, parse_time
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts.host_state import open_session
from clusterfn.public_api import public_api, show_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clusterfn.calls.job import Job
    from clusterfn.config.spec import Host
    from clusterfn.dask.cluster import JobsCluster
    from clusterfn.dask.scheduler_job import SchedulerJob
    from clusterfn.dask.worker_job import WorkerJobs

_TIMEOUTS = ("distributed.comm.timeouts.connect", "distributed.comm.timeouts.tcp")
_PATIENCE_S = 60.0
_LOOK_S = 0.05
_CLOSE_S = 30.0  # for dask to close in order
_WORKERS_END_S = 15.0


@public_api
@show_options(JobOptions)
def dask_client(
    host: str | None = None,
    *,
    workers: int | None = None,
    adapt: tuple[int, int] | None = None,
    imports: Sequence[str] = (),
    scheduler_memory: str = "2GB",
    interface: str | None = None,
    idle: Time = "10min",
    dashboard: bool = False,
    **options: Unpack[JobOptions],
) -> DaskBlock:
    """Run dask on a host for a `with` block: its scheduler and its workers are jobs there; the block gets the client.

    Connections of this process to dask travel through the connection to the host. All ports that dask opens on the
    host demand a certificate that exists for this block alone. Everything ends with the block.

    Args:
        host: The host's name in clusterfn.yml; None as for `cluster`.
        workers: Number of workers, each a job.
        adapt: Instead of `workers`, the smallest and the largest number: dask starts and ends workers as it has tasks.
        imports: Your own modules that tasks import. Functions of the script itself travel without this.
        scheduler_memory: Memory of the scheduler's job, which has one core.
        interface: The network interface by which the nodes reach each other, such as "ib0". Default: the one of the
            nodes' names.
        idle: End everything after this time without a connection to this process. Same format as `time`.
        dashboard: Whether to offer dask's dashboard on a port of this machine, at `client.dashboard_link`. Every user
            of this machine can open it. The environment must have bokeh.
        options: As for `cluster`, for each worker. `time` limits the scheduler's job too.

    Returns:
        A context manager that gives a `distributed.Client`.

    Raises:
        ConfigError: dask is missing here, an option is unknown or has the wrong type or unit, or the host has no way
            into a running job.

    Example:
        >>> with clusterfn.dask_client("cluster", workers=8, cores=4, memory="16GB") as client:
        ...     total = dask.dataframe.read_parquet("/data/trips").fare.sum().compute()
    """
    try:
        import distributed  # noqa: F401
    except ImportError as missing:
        raise ConfigError(
            "dask_client() needs dask and distributed on this machine, too", hint="pip install 'clusterfn[dask]'"
        ) from missing
    least, most = _checked_counts(workers, adapt)
    if inside_job():
        raise RuntimeError("dask_client() inside a job: start the block on your own machine")
    if not isinstance(dashboard, bool):
        raise ConfigError(f"dashboard={dashboard!r} is neither True nor False", hint="write dashboard=True")
    worker = parse_options({"host": host, **options})
    scheduler = dataclasses.replace(
        worker, cores=1, memory_bytes=parse_memory(scheduler_memory, "scheduler_memory"), gpus=0, gpu_type=None,
        gpu_memory_bytes=None, name="dask-scheduler",
    )  # fmt: skip
    idle_s, own, network = parse_time(idle, "idle"), _own_modules(imports), _checked_interface(interface)
    _refuse_host_without_way(config_file.load().resolve(host)[0])
    worker = dataclasses.replace(worker, name="dask-worker")
    return DaskBlock(worker, scheduler, own, network, (least, most, adapt is not None), idle_s, dashboard)


class DaskBlock:
    """A `with` block of `dask_client`; entering it gives the client."""

    def __init__(
        self, worker: Options, scheduler: Options, imports: Sequence[str], interface: str,
        counts: tuple[int, int, bool], idle_s: float, dashboard: bool,
    ) -> None:  # fmt: skip
        self._worker_options, self._scheduler_options = worker, scheduler
        self._imports, self._interface = imports, interface
        self._least, self._most, self._adapts = counts
        self._idle_s, self._dashboard = idle_s, dashboard
        self._scheduler: SchedulerJob | None = None
        self._jobs: WorkerJobs | None = None
        self._cluster: JobsCluster | None = None
        self._client: Any = None
        self._error: ClusterfnError | None = None
        self._failed = threading.Event()
        self._settings = contextlib.ExitStack()
        self._is_ending = False

    @public_api
    def __enter__(self) -> Any:
        """Start dask, and return the client once a worker has connected; without waiting if there may be none.

        Raises:
            ClusterfnError: The scheduler or the workers cannot be started.
        """
        if self._scheduler is not None:
            raise RuntimeError("this block has been used: call dask_client() again")
        try:
            return self._start()
        except BaseException as error:  # Ctrl-C among them: nothing stays behind
            self._end(is_interrupted=True)
            if self._error is not None and isinstance(error, Exception):
                raise self._error from None  # it is the reason
            raise

    def _start(self) -> Any:
        import dask
        from distributed import Client

        from clusterfn.dask.certificate import make_security
        from clusterfn.dask.cluster import JobsCluster
        from clusterfn.dask.scheduler_job import DaskSettings, SchedulerJob, listen_for_dask
        from clusterfn.dask.worker_job import WorkerJobs

        pages = listen_for_dask() if self._dashboard else None
        port = pages.getsockname()[1] if pages is not None else 0
        settings = DaskSettings(self._imports, self._interface, port, make_security())
        try:
            self._jobs = WorkerJobs(self._worker_options, settings)
            self._scheduler = SchedulerJob(self._scheduler_options, settings, self._idle_s, pages)
        except BaseException:  # as above
            if pages is not None:
                pages.close()
            raise
        # This process's end of dask's connections is a socket of this machine, behind which the network may be lost.
        patience = f"{max(self._idle_s, _PATIENCE_S):g}s"
        self._settings.enter_context(dask.config.set(dict.fromkeys(_TIMEOUTS, patience)))
        self._scheduler.on_end(self._fail)
        self._scheduler.await_scheduler()
        self._cluster = JobsCluster(self._scheduler.address, settings.security, self._jobs, self._least, self._fail)
        self._client = Client(self._cluster)
        if self._adapts:
            self._cluster.adapt(minimum=self._least, maximum=self._most)
        self._await_worker(self._cluster, self._jobs)
        return self._client

    def _await_worker(self, cluster: JobsCluster, jobs: WorkerJobs) -> None:
        """Wait for the first worker, and say why there is none yet."""
        said: dict[str, str] = {}
        while self._least and not cluster.scheduler_info["workers"]:
            if self._failed.wait(_LOOK_S):
                break
            for job in list(jobs.sent):
                status = job.status
                if job.state == PENDING and job.reason and said.get(job.id) != status:
                    said[job.id] = status
                    console.tell(f"{job.id[:4]} {status}")
        if self._error is not None:
            raise self._error

    def _fail(self, error: ClusterfnError) -> None:
        """Note why dask cannot go on; whoever waits for a value of it waits no longer."""
        if self._is_ending or self._error is not None:
            return
        self._error = error
        self._failed.set()
        if self._client is not None:
            threading.Thread(target=self._close_client, name="clusterfn-dask-close", daemon=True).start()

    def _close_client(self) -> None:
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):  # the block raises the cause
            self._client.close(_CLOSE_S)

    @public_api
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End dask and all of its jobs.

        Raises:
            ClusterfnError: Dask has ended before the block did.
        """
        self._end(is_interrupted=error is not None and not isinstance(error, Exception))
        if self._error is not None and (error is None or isinstance(error, Exception)):
            raise self._error from error

    def _end(self, is_interrupted: bool) -> None:
        self._is_ending = True
        connected: set[str] = set()
        try:
            if self._cluster is not None:
                connected = self._cluster.begin_end(is_reachable=self._error is None)
            if self._client is not None:
                self._close_client()
            if self._cluster is not None:
                with contextlib.suppress(OSError, RuntimeError, TimeoutError):  # what is left is ended below
                    self._cluster.close(_CLOSE_S)
        finally:
            if self._scheduler is not None:
                self._scheduler.end()
            if self._jobs is not None:
                _end_workers([job for job in self._jobs.sent if not job.done()], set() if is_interrupted else connected)
            self._settings.close()

    def __repr__(self) -> str:
        return f"<DaskBlock: {self._client or 'not begun'}>"


def _end_workers(jobs: Sequence[Job[Any]], connected: set[str]) -> None:
    """End what has not connected, and what has not ended soon after its scheduler, all at the same time."""
    from clusterfn.dask.scheduler_job import end_job

    patience = [(job, _WORKERS_END_S if job.name in connected else 0.0) for job in jobs]
    ending = [threading.Thread(target=end_job, args=each, daemon=True) for each in patience]
    deadline = time.monotonic() + 2 * _WORKERS_END_S
    for each in ending:
        each.start()
    for each in ending:
        each.join(max(0.0, deadline - time.monotonic()))


def _checked_counts(workers: object, adapt: object) -> tuple[int, int]:
    """Return the smallest and the largest number of workers."""
    if (workers is None) == (adapt is None):
        raise ConfigError("dask_client() needs one of workers= and adapt=", hint="write workers=4, or adapt=(0, 32)")
    if adapt is None:
        if not _is_number(workers, 1):
            raise ConfigError(f"workers={workers!r} is not a whole number of at least 1", hint="write workers=4")
        return (workers, workers)  # type: ignore[return-value]
    if isinstance(adapt, (tuple, list)) and len(adapt) == 2 and _is_number(adapt[0], 0) and _is_number(adapt[1], 1):
        least, most = adapt
        if least <= most:
            return least, most
    raise ConfigError(f"adapt={adapt!r} is not a smallest and a largest number", hint="write adapt=(0, 32)")


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _own_modules(imports: object) -> tuple[str, ...]:
    if not isinstance(imports, (list, tuple)) or not all(isinstance(each, str) for each in imports):
        raise ConfigError(f"imports={imports!r} is not a list of modules", hint='write imports=["mypackage"]')
    for name in imports:
        if not user_modules.is_own(name):
            raise ConfigError(
                f"imports={name!r} is not a module of your own that can be sent",
                hint="install it in the environment, or name a module next to your script",
            )
    return tuple(imports)


def _checked_interface(interface: object) -> str:
    if interface is None:
        return ""
    if not isinstance(interface, str) or not interface.strip():
        raise ConfigError(f"interface={interface!r} is not a network interface", hint='write interface="ib0"')
    return interface


def _refuse_host_without_way(host: Host) -> None:
    rules = open_session(host).scheduler_rules
    if rules.has_nodes and not rules.join_command("0"):
        raise ConfigError(
            f"dask cannot run on {host.name}: clusterfn cannot reach into a running job of {rules.title}",
            hint="choose another host; for this one use f.map(items), or clusterfn.Session",
        )
