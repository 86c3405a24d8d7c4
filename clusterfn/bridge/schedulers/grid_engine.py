"""Grid Engine inside a job, by its variables (JOB_ID, SGE_TASK_ID, ...), and outside it, by qstat and qdel."""

import os
import re
import shutil

from ..layout import GPU_STAGE, UNSATISFIABLE
from ..supervisor import process_tree
from ..supervisor.verdict import AttemptEnded, Verdict
from .base import HostScheduler, run_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

_PATIENCE_S = 20
_JOB = re.compile(r"<job_list\b.*?</job_list>", re.DOTALL)
_NAME = re.compile(r"<JB_name>([^<]*)</JB_name>")
_NUMBER = re.compile(r"<JB_job_number>([0-9]+)</JB_job_number>")
_TASKS = re.compile(r"<tasks>([0-9,:-]+)</tasks>")


class GridEngineOnHost(HostScheduler):
    def submission_id(self) -> "Optional[str]":
        # The task of a job that is no array is "undefined".
        number = os.environ.get("JOB_ID")
        task = os.environ.get("SGE_TASK_ID") or "undefined"
        return "%s_%s" % (number, task) if number and task != "undefined" else number or None

    def restarts(self) -> int:
        # Grid Engine says only that it has; the start of job.sh in ticks since boot distinguishes one start from
        # another.
        if os.environ.get("RESTARTED") != "1":
            return 0
        return int(process_tree.start_time(os.getppid()))

    def partition(self) -> str:
        return os.environ.get("QUEUE") or ""

    def find_gpus(self, count: int, count_gpus: "Callable[[], int]") -> "Optional[list[str]]":
        """Return those of a resource map (`SGE_HGR_gpu`); otherwise reject a host with more than were asked for.

        Grid Engine itself only counts, and does not say which of them another job has.
        """
        # The site has set the variable, or a dialect of Grid Engine that binds GPUs.
        if os.environ.get("CUDA_VISIBLE_DEVICES"):
            return None
        for name, text in sorted(os.environ.items()):
            if name.startswith("SGE_HGR_") and "gpu" in name.lower() and len(text.split()) == count:
                return text.split()
        if shutil.which("nvidia-smi") is None:
            return None
        gpu_count = count_gpus()
        if gpu_count <= count:
            return None
        problem = "which of the %d GPUs of %s are the job's: it asked for %d" % (gpu_count, self.node_name(), count)
        hint = "ask for gpus=%d, or have the site set CUDA_VISIBLE_DEVICES in its prolog" % gpu_count
        raise AttemptEnded(Verdict(UNSATISFIABLE, "Grid Engine does not say " + problem, stage=GPU_STAGE, hint=hint))

    def cancel_waiting_elements(self) -> None:
        # qdel needs a list: it would kill those that run, too. A host that may not use it loses nothing.
        number = os.environ.get("JOB_ID")
        for job in _jobs(["-s", "p"]) or ():
            tasks = _TASKS.search(job)
            if tasks and number in _NUMBER.findall(job):
                for some in tasks.group(1).split(","):
                    _run(["qdel", str(number), "-t", some])

    def listed_jobs(self, clusters: str) -> "Optional[set[str]]":
        jobs = _jobs([])
        return None if jobs is None else {name.rpartition(".")[2] for job in jobs for name in _NAME.findall(job)}


def _jobs(options: "list[str]") -> "Optional[list[str]]":
    """Return what qstat lists of the user's jobs, each as XML; None if it failed."""
    import pwd

    answer = _run(["qstat", "-xml", "-u", pwd.getpwuid(os.getuid()).pw_name, *options])
    return None if answer is None else _JOB.findall(answer)


def _run(argv: "list[str]") -> "Optional[str]":
    # A job's PATH is short, but a variable says where Grid Engine's programs are.
    path = [os.environ.get("PATH", os.defpath), os.environ.get("SGE_BINARY_PATH", "")]
    environ = dict(os.environ, PATH=os.pathsep.join(folder for folder in path if folder))
    status, output, _ = run_command(argv, _PATIENCE_S, environ)
    return output if status == 0 else None
