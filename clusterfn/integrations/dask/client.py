"""`clusterfn.dask_client`: check what it is asked for. What needs dask is imported after that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterfn.api.decorator import inside_job
from clusterfn.config import config_file, import_time
from clusterfn.config.options import JobOptions, Time, parse_options, without_needs
from clusterfn.config.units import parse_memory, parse_time
from clusterfn.errors import ConfigError
from clusterfn.hosts.host_state import open_session
from clusterfn.integrations.dask.plan import DaskPlan, NodeWorkers
from clusterfn.integrations.jupyter.kernel_job import host_with_way
from clusterfn.packing.project import modules as own_modules
from clusterfn.public_api import public_api, show_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clusterfn.integrations.dask.block import DaskBlock


@public_api
@show_options(JobOptions)
def dask_client(
    host: str | None = None, *, workers: int | None = None, adapt: tuple[int, int] | None = None,
    nodes: int | None = None, imports: Sequence[str] = (), scheduler_memory: str = "2GB", interface: str | None = None,
    idle: Time = "10min", dashboard: bool = False, **options: Unpack[JobOptions],
) -> DaskBlock:  # fmt: skip
    """Run dask on a host for a `with` block: its scheduler and its workers are jobs there; the block gets the client.
    With `nodes`, one job holds all of them.

    Connections of this process to dask travel through the connection to the host. All ports that dask opens on the
    host demand a certificate that exists for this block alone. Everything ends with the block.

    Args:
        host: The host's name in clusterfn.yml; None as for `cluster`.
        workers: Number of workers, each a job unless `nodes` is given.
        adapt: Instead of `workers`, the smallest and the largest number: dask starts and ends workers as it has tasks.
        nodes: Run the scheduler and all workers in one job on this number of nodes, with as many workers on each; 1 on
            a host without a scheduler. The job starts once all of it fits, and the block begins with all workers.
        imports: Your own modules that tasks import. Functions of the script itself travel without this.
        scheduler_memory: Memory of the scheduler's job, which has one core. With `nodes`, each node has so much in
            addition to its workers' memory.
        interface: The network interface by which the nodes reach each other, such as "ib0". Default: the one of the
            nodes' names.
        idle: End everything after this time without a connection to this process. Same format as `time`.
        dashboard: Whether to offer dask's dashboard on a port of this machine, at `client.dashboard_link`. Every user
            of this machine can open it. The environment must have bokeh.
        options: As for `cluster`, for each worker. `time` limits each job.

    Returns:
        A context manager that gives a `distributed.Client`.

    Raises:
        ConfigError: dask is missing here, an option is unknown or has the wrong type or unit, or the host has no way
            into a running job.

    Example:
        >>> with clusterfn.dask_client("cluster", workers=8, cores=4, memory="16GB") as client:
        ...     total = dask.dataframe.read_parquet("/data/trips").fare.sum().compute()
    """
    least, most = _checked_counts(workers, adapt)
    if nodes is not None:
        _check_nodes(nodes, workers)
    if inside_job():
        import_time.reject_sending_in_job("dask_client()", "start the block on your own machine")
    if not isinstance(dashboard, bool):
        raise ConfigError(f"dashboard={dashboard!r} is neither True nor False", hint="write dashboard=True")
    worker = parse_options({"host": host, **options})
    scheduler_bytes, idle_s = parse_memory(scheduler_memory, "scheduler_memory"), parse_time(idle, "idle")
    own = _own_modules(imports)
    if interface is not None and (not isinstance(interface, str) or not interface.strip()):
        raise ConfigError(f"interface={interface!r} is not a network interface", hint='write interface="ib0"')
    try:
        import distributed  # noqa: F401
    except ImportError as missing:
        problem = f"dask_client() needs dask and distributed on this machine, too: {missing}"
        raise ConfigError(problem, hint="pip install '.[dask]' in your clone of clusterfn") from missing
    chosen_host = host_with_way(host, "dask", "f.map(items), or clusterfn.Session")
    if chosen_host.result_policy(worker.results).data_only:
        problem = f"dask_client() exchanges Python objects with {chosen_host.name}"
        hint = 'map over the items instead: f.map(items); or set results="objects" if you trust the host'
        raise ConfigError(f'{problem}, which results="data" does not accept', hint=hint)
    node_workers = None
    if nodes is None:
        scheduler = worker._replace(
            cores=1, memory_bytes=scheduler_bytes, gpus=0, gpu_type=None, gpu_memory_bytes=None,
            name="dask-scheduler",
        )  # fmt: skip
    else:
        nodes, each_worker = (1, without_needs(worker)) if config_file.runs_locally() else (nodes, worker)
        if nodes > 1 and not open_session(chosen_host).scheduler_rules.has_nodes:
            problem = f"{chosen_host.name} is one machine; only a cluster with a batch scheduler has nodes"
            hint = "write nodes=1: one job then holds dask's scheduler and all workers"
            raise ConfigError(f"nodes={nodes}: {problem}", host=chosen_host.name, hint=hint)
        node_workers = NodeWorkers.of(least // nodes, each_worker, chosen_host)
        scheduler = node_workers.job_options(worker, nodes, scheduler_bytes)
    worker = worker._replace(name="dask-worker")
    # This import is late, because the module needs dask, which was only checked above.
    from clusterfn.integrations.dask.block import DaskBlock

    adapts, network = adapt is not None, interface or ""
    return DaskBlock(DaskPlan(scheduler, worker, node_workers, least, most, adapts, own, network, idle_s, dashboard))


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


def _check_nodes(nodes: int, workers: int | None) -> None:
    if not _is_number(nodes, 1):
        raise ConfigError(f"nodes={nodes!r} is not a whole number of at least 1", hint="write nodes=2")
    if workers is None:
        problem = f"nodes={nodes} puts a fixed number of workers into one job, and adapt= changes their number"
        hint = "write workers= instead of adapt=, or leave nodes= out: each worker is then a job of its own"
        raise ConfigError(problem, hint=hint)
    if workers % nodes:
        per_node = workers // nodes
        counts = " or ".join(f"workers={each * nodes}" for each in (per_node, per_node + 1) if each)
        raise ConfigError(f"workers={workers} cannot be spread evenly over nodes={nodes}", hint=f"write {counts}")


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _own_modules(imports: object) -> tuple[str, ...]:
    if not isinstance(imports, (list, tuple)) or not all(isinstance(each, str) for each in imports):
        raise ConfigError(f"imports={imports!r} is not a list of modules", hint='write imports=["mypackage"]')
    for name in imports:
        if not own_modules.is_own(name):
            hint = "install it in the environment, or name a module next to your script"
            raise ConfigError(f"imports={name!r} is not a module of your own that can be sent", hint=hint)
    return tuple(imports)
