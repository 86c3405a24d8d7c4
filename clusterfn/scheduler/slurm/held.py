"""A job in an allocation that is held: the request that starts it by srun there, or by sbatch where it does not fit.

Whether it fits is decided on the host, which knows what is held now (`bridge.schedulers.slurm_allocation`).
"""

from __future__ import annotations

import json
import math
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from clusterfn.bridge import layout
from clusterfn.scheduler.base import Answer, Submission

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec

_NOTE = "clusterfn: "
_MB = 2**20
# One step that takes what it asks for alone, or ends at once if others have it. Its variables are those of `enter`.
_STEP = (
    "--exclusive", "--immediate", "--nodes=1", "--ntasks=1", "--mpi=none", "--input=none", "--export=ALL", "--quiet",
)  # fmt: skip


def request(job: JobSpec, by_sbatch: Submission, gpu_options: Mapping[str, str], clusters: Sequence[str]) -> Submission:
    """As `Scheduler.into_held`; `gpu_options` are those of srun for the GPUs of one job, `clusters` for the cluster."""
    resources, folder = job.resources, layout.job_dir(job.root, job.id)
    memory = None if resources.memory_bytes is None else math.ceil(resources.memory_bytes / _MB)
    options = {"job-name": layout.job_name(job.name, job.id), "chdir": folder, "cpus-per-task": resources.cores}
    if resources.time_s is not None:  # as that of a job of its own, for a supervisor that is stopped or hangs
        options["time"] = math.ceil(resources.time_s / 60) + 1
    # The host's default is how long a job of its own may take; here the end of the allocation ends it before.
    time_s = None if resources.time_s == job.host.defaults.time_s else resources.time_s
    gpus = gpu_options if resources.gpus else {"gres": "none"}
    words = [f"--{name}={value}" for name, value in {**options, **gpus}.items()]
    words += [f"--mem={memory}M"] if memory is not None else []
    wanted = {
        "name": job.name, "folder": folder, "cores": resources.cores, "memory_mb": memory, "gpus": resources.gpus,
        "gpu_type": resources.gpu_type, "time_s": time_s, "srun": ["srun", *clusters, *_STEP, *words],
    }  # fmt: skip
    enter = [job.host_python, "-I", "-S", posixpath.join(job.bridge, layout.SUPERVISE), "enter"]
    record = posixpath.join(job.root, layout.HOLD)
    return by_sbatch._replace(argv=(*enter, record, json.dumps(wanted), *by_sbatch.argv), forks=True)


def never(job: JobSpec) -> str:
    """As `Scheduler.never_held`."""
    reasons = (
        (job.resources.nodes * job.resources.tasks_per_node > 1, "it has several tasks"),
        (bool(job.after), "it waits for other jobs"),
        (bool(job.retries or job.requeue), "SLURM may start it again (retries= or requeue=)"),
        (bool(job.scheduler_options), "it has options of its own (slurm=)"),
    )
    return next((why for applies, why in reasons if applies), "")


def notes(answer: Answer) -> Sequence[str]:
    """Return the lines for the user in what `enter` has written."""
    return [line[len(_NOTE) :] for line in answer.err.splitlines() if line.startswith(_NOTE)]
