"""Which schedulers there are: `SCHEDULERS` registers each with its parts. Add a scheduler here.

Only this module knows their names. Other code looks a scheduler up here by the word of `scheduler:`, and on the host it
asks `scheduler_named`, and reads no variable of a scheduler itself. CONTRIBUTING.md has the steps.
"""

from .base import BareOnHost, HostScheduler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional


class Registration:
    """A scheduler, and where its parts are: each is loaded where it is needed, because every call would wait for all.

    Args:
        on_host: Its `HostScheduler`, below this package.
        client: Its `Scheduler` on the client, below `clusterfn.scheduler`, as the two that follow.
        site: Its `SchedulerSite`.
        keys: Its `SchedulerKeys`.
        job_variable: A variable that all its jobs have.
        task_variable: One with the number of a task in its array.
        gpus_variable: One with the GPUs of a job, as CUDA_VISIBLE_DEVICES; "" for none.
        obeyed: Prefixes of variables by which its commands would do something else, or a new job take itself for
            another one; what a prefix after "!" covers stays.
    """

    def __init__(
        self,
        *,
        on_host: str,
        client: str,
        site: str,
        keys: str,
        job_variable: str,
        task_variable: str,
        gpus_variable: str = "",
        obeyed: "tuple[str, ...]" = (),
    ) -> None:
        self.on_host = on_host
        self.client = client
        self.site = site
        self.keys = keys
        self.job_variable = job_variable
        self.task_variable = task_variable
        self.gpus_variable = gpus_variable
        self.obeyed = obeyed

    def import_part(self, part: str) -> "Any":
        """Return a part that the client has."""
        return _load("clusterfn.scheduler." + part, 0)


def _load(name: str, level: int) -> "Any":
    module, _, kind = name.rpartition(".")
    return getattr(__import__(module, globals(), None, [kind], level), kind)


# The word of `scheduler:` in clusterfn.yml. The other words mean a machine without a scheduler.
SCHEDULERS = {
    "slurm": Registration(
        on_host="slurm.SlurmOnHost",
        client="slurm.submit.Slurm",
        site="slurm.site.SlurmSite",
        keys="slurm.keys.KEYS",
        job_variable="SLURM_JOB_ID",
        task_variable="SLURM_ARRAY_TASK_ID",
        gpus_variable="SLURM_JOB_GPUS",
        # SLURM_CONF, SLURM_CONF_SERVER and SLURM_JWT stay: they say where SLURM is, and who asks it.
        obeyed=(
            "SBATCH_",
            "SQUEUE_",
            "SCANCEL_",
            "SCONTROL_",
            "SINFO_",
            "SALLOC_",
            "SRUN_",
            "SLURM_",
            "!SLURM_CONF",
            "!SLURM_JWT",
        ),
    ),
    "grid_engine": Registration(
        on_host="grid_engine.GridEngineOnHost",
        client="grid_engine.submit.GridEngine",
        site="grid_engine.site.GridEngineSite",
        keys="grid_engine.site.KEYS",
        job_variable="SGE_TASK_ID",
        task_variable="SGE_TASK_ID",
        obeyed=("SGE_TASK_",),
    ),
}


def scheduler_named(name: str) -> "HostScheduler":
    """Return the scheduler of a job, by the name in its spec.json."""
    scheduler = _load(SCHEDULERS[name].on_host, 1)() if name in SCHEDULERS else BareOnHost()
    assert isinstance(scheduler, HostScheduler)
    return scheduler


def scheduler_of_job(environ: "Mapping[str, str]") -> "Optional[HostScheduler]":
    """Return the scheduler of the job with these variables; None without one with nodes."""
    found = (scheduler_named(name) for name, scheduler in SCHEDULERS.items() if scheduler.job_variable in environ)
    return next(found, None)


def given_gpus(environ: "Mapping[str, str]") -> str:
    """Return the GPUs that a job with these variables was given, as a list with commas; "" where none says it."""
    names = ["CUDA_VISIBLE_DEVICES", *(scheduler.gpus_variable for scheduler in SCHEDULERS.values())]
    return next((environ[name] for name in names if environ.get(name)), "")
