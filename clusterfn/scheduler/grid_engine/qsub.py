"""What qsub gets: the options of a job from its call and from clusterfn.yml, and the script that runs qsub."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from clusterfn.bridge import layout
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import ConfigError
from clusterfn.scheduler.base import PASSED_VARIABLES, Submission
from clusterfn.scheduler.grid_engine.site import USUAL_NAMES

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec

# `-w e` rejects what can never run, which would otherwise wait without end, but does not say why. `-w v` says why, and
# submits nothing.
_SUBMIT = f"""\
for name in {" ".join(PASSED_VARIABLES)}; do
    eval "[ -z \\"\\${{$name+x}}\\" ]" || set -- -v "$name" "$@"
done
qsub -terse -w e "$@" && exit
status=$?
qsub -w v "$@" >&2
exit "$status"
"""
_MISREAD = re.compile(r"[$:,%\\]")
_MB = 2**20
# h_vmem counts address space, whereas the supervisor limits the memory in use. Programs reserve more than they use.
_OVERHEAD = 2**30
# The supervisor enforces `time`. Grid Engine's limit comes later and only catches a supervisor that hangs.
_TIME_MARGIN_S = 60
_ERRAND_MEMORY = 4 * 2**30


def submit(host: Host, job: JobSpec) -> Submission:
    """Submit a job."""
    folder = _folder(host, job)
    options = _options(host, job, folder, posixpath.join(folder, layout.SCHEDULER_LOG))
    return _submission(folder, [*options, posixpath.join(folder, layout.SCRIPT)])


def elements(host: Host, job: JobSpec, numbers: range, largest: int) -> Sequence[tuple[range, Submission]]:
    """Submit job arrays, as few as possible; together they run as many elements at once as the group allows."""
    folder = _folder(host, job)
    options = _options(host, job, folder, posixpath.join(folder, layout.element_log("$JOB_ID_$TASK_ID")))
    arrays = [numbers[first : first + largest] for first in range(0, len(numbers), largest)]
    at_once = max(1, (job.group.at_once if job.group else 1) // len(arrays))
    script = posixpath.join(folder, layout.SCRIPT)
    return [
        (some, _submission(folder, [*options, "-t", f"1-{len(some)}", "-tc", str(at_once), script, str(some[0] - 1)]))
        for some in arrays
    ]


def errand(host: Host, line: str, name: str, log: str, partition: str) -> Submission:
    """Run qsub with the line itself, and with what the host's other jobs need, such as the project."""
    options = ["-N", name, "-o", log, "-j", "y", "-S", "/bin/sh", "-b", "y", "-shell", "n"]
    options += requests(host, Resources(memory_bytes=_ERRAND_MEMORY, time_s=host.defaults.time_s))
    options += ["-q", partition] if partition else _queue_option(host, 0)
    return _submission(posixpath.dirname(log), [*options, *_project(host), "/bin/sh", "-c", f"exec {line}"])


def requests(host: Host, resources: Resources) -> list[str]:
    """Return the options `-l`; each resource that Grid Engine multiplies is a slot's share."""
    amounts: dict[str, object] = dict(host.scheduler_options.get("resources", {}))
    memory = option(host, "memory")
    if resources.memory_bytes is not None and memory is not None:
        needed = math.ceil((resources.memory_bytes + _OVERHEAD) / _MB)
        amounts[memory] = f"{amount(host, 'memory', needed, resources.cores)}M"
    if resources.gpus:
        amounts[str(option(host, "gpus"))] = amount(host, "gpus", resources.gpus, resources.cores)
    if resources.time_s is not None:
        amounts["h_rt"] = math.ceil(resources.time_s) + _TIME_MARGIN_S
    return [word for name, value in amounts.items() for word in ("-l", f"{name}={value}")]


def amount(host: Host, kind: str, total: int, slots: int) -> int:
    """Return what one slot asks for: memory is rounded up; GPUs that slots cannot share equally are rejected."""
    name = option(host, kind)
    if name is None:
        message = f"gpus={total} cannot be asked for: `grid_engine: gpus:` is null for {host.name} ({host.source})"
        raise ConfigError(message, host=host.name, hint="name the site's own resource")
    if name in host.scheduler_options.get("per_job", ()):
        return total
    if kind == "gpus" and total % slots:
        message = f"gpus={total} with cores={slots}: Grid Engine gives each slot the same number of GPUs"
        hint = f"ask for cores={total}; or, if `qconf -sc` says JOB for {name}: grid_engine: {{per_job: [{name}]}}"
        raise ConfigError(message, host=host.name, hint=hint)
    return math.ceil(total / slots)


def option(host: Host, key: str) -> str | None:
    """Return the site's own name, or the usual one."""
    value: str | None = host.scheduler_options.get(key, USUAL_NAMES[key])
    return value


def queue(host: Host, gpus: int) -> str:
    """Return the queue that clusterfn.yml names for jobs with so many GPUs; "" for the default."""
    named = host.scheduler_options.get("queue")
    return (named.get("gpu" if gpus else "cpu") if isinstance(named, Mapping) else named) or ""


def _submission(folder: str, arguments: Sequence[str]) -> Submission:
    return Submission("run", ("/bin/sh", "-c", _SUBMIT, "sh", *arguments), folder)


def _folder(host: Host, job: JobSpec) -> str:
    folder = layout.job_dir(job.root, job.id)
    if _MISREAD.search(folder):
        message = f"{folder!r}: Grid Engine expands or splits paths at $ : , % and \\"
        raise ConfigError(message, host=host.name, hint="set `root:` to a folder without these characters")
    return folder


def _options(host: Host, job: JobSpec, folder: str, log: str) -> list[str]:
    """Return the options of a job. With `-C ""`, lines of the script that begin with #$ are none."""
    name = layout.job_name(job.name, job.id)
    if name[0].isdecimal():
        message = f"name={job.name!r}: Grid Engine takes no name that begins with a digit"
        raise ConfigError(message, host=host.name, hint="begin name= with a letter")
    options = ["-N", name, "-wd", folder, "-o", log, "-j", "y", "-S", "/bin/sh", "-C", ""]
    # Grid Engine starts the job again after the loss of its host, where the site allows that.
    options += ["-r", "y" if job.retries else "n"]
    # Grid Engine takes a name that is no longer in the queue for a job that has ended.
    if job.after:
        options += ["-hold_jid", ",".join(job.scheduler_names_of_dependencies())]
    resources = job.resources
    time_s = job.group.element_s if job.group else resources.time_s
    if resources.cores > 1:
        options += ["-pe", str(option(host, "parallel_environment")), str(resources.cores)]
    needs = requests(host, resources._replace(time_s=time_s))
    return [*options, *needs, *_queue_option(host, resources.gpus), *_project(host)]


def _queue_option(host: Host, gpus: int) -> list[str]:
    named = queue(host, gpus)
    return ["-q", named] if named else []


def _project(host: Host) -> list[str]:
    project = host.scheduler_options.get("project")
    return ["-P", str(project)] if project else []
