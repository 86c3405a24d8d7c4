"""A host without a scheduler, and this machine: the agent starts job.sh, and a process id says whether it lives.

A job that finds no room waits there in the queue of its user, which starts it.

Pure, like every scheduler. The scheduler's number of a job is `boot_id:pid:starttime`, as in the claim.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from clusterfn.bridge import layout
from clusterfn.bridge.schedulers.registry import SCHEDULERS
from clusterfn.config.spec import Resources
from clusterfn.errors import ConfigError, SubmitError
from clusterfn.scheduler.base import (
    PENDING,
    Answer,
    Evidence,
    JobState,
    Scheduler,
    SchedulerVerdict,
    Submission,
    Template,
)

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec


class Bare(Scheduler):
    """Starts jobs as processes of the host.

    Args:
        boot_id: The host's boot id, from the agent's hello.
        queue: Returns the command that lists its queue.
        host: Its name, for messages.
    """

    title = "clusterfn's own queue"
    overview = "no SLURM: jobs wait their turn for cores, memory and GPUs in clusterfn's own queue"
    has_nodes = False
    knows_all = False
    # A wait status has the exit code in its upper byte.
    queued_status = layout.EXIT_QUEUED << 8
    evidence_of_many = True
    # Looks are frequent, because a look reads the user's own file and costs other users nothing.
    looks_s = ((6.0, 2.0), (30.0, 5.0), (float("inf"), 10.0))

    # Inside an allocation, or inside another job, these would make the new job take itself for that one.
    unset = (*(prefix for scheduler in SCHEDULERS.values() for prefix in scheduler.obeyed), layout.TAG)

    def __init__(self, boot_id: str = "", queue: Callable[[], tuple[str, ...]] = tuple, host: str = "") -> None:
        self.boot_id = boot_id
        self._queue = queue
        self._host = host

    def resolve_resources(self, resources: Resources) -> Resources:
        """Reject several nodes and tasks."""
        tasks, nodes = resources.tasks_per_node, resources.nodes
        if tasks > 1:
            problem = f"tasks_per_node={tasks}: only a host with `scheduler: slurm` starts tasks as srun does"
            hint = "leave it out, and start the processes in the function, as docs/how-to/frameworks.md shows"
            raise ConfigError(problem, host=self._host, hint=hint)
        if nodes > 1:
            problem = f"nodes={nodes}: {self._host} is one machine; only a host with `scheduler: slurm` has nodes"
            hint = "leave nodes= out: one call may use all its GPUs, as docs/how-to/several-gpus.md shows"
            raise ConfigError(problem, host=self._host, hint=hint)
        return resources

    def submission(self, job: JobSpec) -> Submission:
        """Start job.sh in a session of its own."""
        folder = layout.job_dir(job.root, job.id)
        script, log = (posixpath.join(folder, name) for name in (layout.SCRIPT, layout.SCHEDULER_LOG))
        return _with_template(Submission("spawn", ("/bin/sh", script), folder, self.unset, log), job, folder)

    def elements(self, job: JobSpec, numbers: range, largest: int) -> Sequence[tuple[range, Submission]]:
        """Start a process for each."""
        folder = layout.job_dir(job.root, job.id)
        script = posixpath.join(folder, layout.SCRIPT)

        def spawn(number: int) -> Submission:
            log = posixpath.join(folder, layout.element_log(number))
            request = Submission("spawn", ("/bin/sh", script, str(number)), folder, self.unset, log)
            return _with_template(request, job, layout.element_dir(folder, number))

        return [(range(number, number + 1), spawn(number)) for number in numbers]

    def submitted(self, answer: Answer) -> str:
        """Return boot_id:pid:starttime of job.sh."""
        if answer.pid is None:
            raise SubmitError("the job's script could not be started", stage="submit", evidence=answer.err.splitlines())
        return f"{self.boot_id}:{answer.pid}:{answer.starttime}"

    def watch_command(self) -> tuple[str, ...]:
        """Return the command that lists the jobs that wait."""
        return self._queue()

    def parse_states(self, text: str) -> Mapping[str, JobState]:
        """Read the states by name; of a group that of its first element."""
        states: dict[str, JobState] = {}
        for line in text.splitlines():
            match = _WAITS.fullmatch(line)
            if match:
                states.setdefault(match[1], JobState(PENDING, "PENDING", match[2]))
        return states

    def trouble(self, answer: Answer) -> str:
        return "" if answer.rc == 0 else (answer.err.strip().splitlines() or ["the host's queue does not answer"])[-1]

    def element_log(self, number: int, scheduler_id: str) -> str:
        return layout.element_log(number)

    def evidence_command(self, *scheduler_ids: str) -> tuple[str, ...]:
        """Show the boot id and the lines in /proc of those processes that are there."""
        pids = [(job_id.split(":") + ["", ""])[1] for job_id in scheduler_ids]
        return ("cat", "/proc/sys/kernel/random/boot_id", *(f"/proc/{pid}/stat" for pid in pids if _PID.fullmatch(pid)))

    def explain(self, evidence: Evidence) -> SchedulerVerdict | None:
        """Recognize a rebooted host or a process that is gone; None while it lives, and where there is no /proc."""
        boot, _, stats = evidence.answer.partition("\n")
        submitted_boot, _, process = evidence.scheduler_id.partition(":")
        if not _BOOT_ID.fullmatch(boot) or not submitted_boot:
            return None
        if boot != submitted_boot:
            message = "the host was restarted while the job was there"
            return SchedulerVerdict(layout.NODE, message, _tail(evidence), _AGAIN)
        return None if _lives(stats, process) else _gone(evidence)


# The name with the job's id, the number of an element, and why the job waits.
_WAITS = re.compile(r"(.+?\.[0-9a-f]{16})(?:\.[0-9]+)?\|PENDING\|(.*)")
_PID = re.compile("[1-9][0-9]{0,9}")
_BOOT_ID = re.compile(r"[0-9a-f-]{36}")
_AGAIN = "call the function again"


def _with_template(request: Submission, job: JobSpec, folder: str) -> Submission:
    """Let a job or an element, whose folder this is, be forked if its script does nothing before its Python starts."""
    host = job.host
    prepares = host.setup or host.prolog or host.modules or job.modules or host.scheduler_path
    # A template has the variables of a job, which those that read them early must not share.
    is_other = job.serving or job.kernel or job.secrets or any(name.startswith("PYTHON") for name in job.env)
    # What mounts an image file ends with the first process in it, and jobs outlive their template.
    is_mounted = job.interpreter.image.endswith((".sif", ".simg")) or "://" in job.interpreter.image
    if prepares or is_other or is_mounted or not host.spare:
        return request
    supervise = posixpath.join(job.bridge, layout.SUPERVISE)
    sent = layout.job_dir(job.root, job.id)
    # Jobs whose interpreters start alike may have the same template.
    alike = json.dumps([job.interpreter.path, sorted(job.env.items()), bool(job.resources.gpus)])
    return request._replace(
        template=Template((job.host_python, "-I", "-S", supervise, "template", sent), alike, folder)
    )


def _lives(stats: str, process: str) -> bool:
    """Whether a line of /proc/PID/stat is of the process `pid:starttime` (names in it may hold blanks)."""
    pid, _, start = process.partition(":")
    lines = (stat.rpartition(")")[2].split() for stat in stats.split("\n") if stat.startswith(pid + " "))
    # A process in state Z or X has ended and only waits to be collected.
    return any(len(fields) > 19 and fields[0] not in "ZX" and fields[19] == start for fields in lines)


def _gone(evidence: Evidence) -> SchedulerVerdict:
    hint = "see whether the kernel's out-of-memory killer or an administrator ended them; then call the function again"
    return SchedulerVerdict(layout.LOST, "the job's processes are gone and left no result", _tail(evidence), hint)


def _tail(evidence: Evidence) -> tuple[str, ...]:
    return tuple(evidence.log.splitlines()[-5:])
