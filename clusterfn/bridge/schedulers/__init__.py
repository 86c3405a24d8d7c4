"""The scheduler of a job on its host, inside the job and outside it. `registry` has all schedulers.

All other code on the host asks `scheduler_named`, and reads no variable of a scheduler itself.
"""

from .base import BareOnHost, HostScheduler
from .registry import SCHEDULERS as SCHEDULERS
from .registry import load_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping


def scheduler_named(name: str) -> "HostScheduler":
    """Return the scheduler of a job, by the name in its spec.json."""
    scheduler = load_part(SCHEDULERS[name].on_host, 1)() if name in SCHEDULERS else BareOnHost()
    assert isinstance(scheduler, HostScheduler)
    return scheduler


def gives_out_gpus(name: str) -> bool:
    """Whether the scheduler of this name gives jobs their GPUs (`has_nodes`). Loads no module of it."""
    return name in SCHEDULERS


def in_held_allocation(argv: "list[str]") -> int:
    """Run `hold` or `enter`, whose words follow; only SLURM has allocations that outlast a job."""
    # This import is late, because every call loads this module, and only a held allocation needs that one.
    from . import slurm_allocation

    return int(getattr(slurm_allocation, argv[0])(*argv[1:]))


def is_batch_job(environ: "Mapping[str, str]") -> bool:
    """Return whether these are the variables of a job of any scheduler with nodes."""
    return any(scheduler.job_variable in environ for scheduler in SCHEDULERS.values())


def given_gpus(environ: "Mapping[str, str]") -> str:
    """Return the GPUs that a job with these variables was given, as a list with commas; "" where none says it."""
    names = ["CUDA_VISIBLE_DEVICES", *(scheduler.gpus_variable for scheduler in SCHEDULERS.values())]
    return next((environ[name] for name in names if environ.get(name)), "")
