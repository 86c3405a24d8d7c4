"""What a scheduler means on the host, inside a job and outside it: one module for each scheduler, one interface.

`base` is the interface; `scheduler_named` chooses by the name in the job's spec.json. All other code on the host asks
it, and reads no variable of a scheduler itself.
"""

from .base import BareOnHost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

    from .base import HostScheduler


def scheduler_named(name: str) -> "HostScheduler":
    """Return the scheduler of a job, by the name in its spec.json."""
    if name == "slurm":
        from .slurm import SlurmOnHost

        return SlurmOnHost()
    if name == "grid_engine":
        from .grid_engine import GridEngineOnHost

        return GridEngineOnHost()
    return BareOnHost()


def gives_out_gpus(name: str) -> bool:
    """Whether the scheduler of this name gives jobs their GPUs (`has_nodes`). Loads no module of it."""
    return name in ("slurm", "grid_engine")


def in_held_allocation(argv: "list[str]") -> int:
    """Run `hold` or `enter`, whose words follow; only SLURM has allocations that outlast a job."""
    from . import slurm_allocation

    return int(getattr(slurm_allocation, argv[0])(*argv[1:]))


def is_batch_job(environ: "Mapping[str, str]") -> bool:
    """Return whether these are the variables of a job of any scheduler with nodes."""
    return "SLURM_JOB_ID" in environ or "SGE_TASK_ID" in environ


def given_gpus(environ: "Mapping[str, str]") -> str:
    """Return the GPUs that a job with these variables was given, as a list with commas; "" where none says it."""
    return environ.get("CUDA_VISIBLE_DEVICES") or environ.get("SLURM_JOB_GPUS") or ""
