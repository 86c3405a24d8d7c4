"""`clusterfn.dask_client`: check what it is asked for. What needs dask is imported after that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterfn.api.decorator import inside_job
from clusterfn.config import import_time
from clusterfn.config.options import JobOptions, Time, parse_options
from clusterfn.config.units import parse_memory, parse_time
from clusterfn.errors import ConfigError
from clusterfn.integrations.jupyter.kernel_job import host_with_way
from clusterfn.packing.project import modules as own_modules
from clusterfn.public_api import public_api, show_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clusterfn.integrations.dask.block import DaskBlock


@public_api
@show_options(JobOptions)
def dask_client(
    host: str | None = None,
    *,
    workers: int | None = None,
    imports: Sequence[str] = (),
    scheduler_memory: str = "2GB",
    idle: Time = "10min",
    **options: Unpack[JobOptions],
) -> DaskBlock:
    """Run dask on a host for a `with` block: its scheduler and its workers are jobs there; the block gets the client.

    Connections of this process to dask travel through the connection to the host. All ports that dask opens on the
    host demand a certificate that exists for this block alone. Everything ends with the block.

    Args:
        host: The host's name in clusterfn.yml; None as for `cluster`.
        workers: Number of workers, each a job.
        imports: Your own modules that tasks import. Functions of the script itself travel without this.
        scheduler_memory: Memory of the scheduler's job, which has one core.
        idle: End everything after this time without a connection to this process. Same format as `time`.
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
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise ConfigError(f"workers={workers!r} is not a whole number of at least 1", hint="write workers=4")
    if inside_job():
        import_time.reject_sending_in_job("dask_client()", "start the block on your own machine")
    worker = parse_options({"host": host, **options})
    scheduler_bytes, idle_s = parse_memory(scheduler_memory, "scheduler_memory"), parse_time(idle, "idle")
    own = _own_modules(imports)
    try:
        import distributed  # noqa: F401
    except ImportError as missing:
        problem = f"dask_client() needs dask and distributed on this machine, too: {missing}"
        raise ConfigError(problem, hint="pip install '.[dask]' in your clone of clusterfn") from missing
    chosen_host = host_with_way(worker, "dask", "f.map(items), or clusterfn.Session").host
    if chosen_host.result_policy(worker.results).data_only:
        problem = f"dask_client() exchanges Python objects with {chosen_host.name}"
        hint = 'map over the items instead: f.map(items); or set results="objects" if you trust the host'
        raise ConfigError(f'{problem}, which results="data" does not accept', hint=hint)
    without_gpus = worker._replace(gpus=0, gpu_type=None, gpu_memory_bytes=None)
    scheduler = without_gpus._replace(cores=1, memory_bytes=scheduler_bytes, name="dask-scheduler")
    # This import is late, because the module needs dask, which was only checked above.
    from clusterfn.integrations.dask.block import DaskBlock

    worker = worker._replace(name="dask-worker")
    return DaskBlock(scheduler, worker, workers, own, idle_s)


def _own_modules(imports: object) -> tuple[str, ...]:
    if not isinstance(imports, (list, tuple)) or not all(isinstance(module, str) for module in imports):
        raise ConfigError(f"imports={imports!r} is not a list of modules", hint='write imports=["mypackage"]')
    for name in imports:
        if not own_modules.is_own(name):
            hint = "install it in the environment, or name a module next to your script"
            raise ConfigError(f"imports={name!r} is not a module of your own that can be sent", hint=hint)
    return tuple(imports)
