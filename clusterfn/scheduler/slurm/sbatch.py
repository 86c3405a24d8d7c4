"""What sbatch gets: the options of a job from its call and from clusterfn.yml, and the scripts that run sbatch.

Options are sent as `--name=value`, so that no value can be taken for an option. Every value is an argument of a script.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.schedulers.slurm import STANDING
from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError
from clusterfn.scheduler.base import PASSED_VARIABLES, Submission
from clusterfn.scheduler.slurm import OBEYED, answers, gres

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec

# A list keeps the other variables of the login's session out of the job: SLURM then makes the user's login environment
# on the node. HOME is there in any case.
_EXPORT = ",".join(["HOME", "USER", "LOGNAME", *PASSED_VARIABLES])
# $1 the names of the jobs whose values it takes, $2 other conditions, $3 and $4 how squeue is asked. A job that is no
# longer listed has ended. The job itself sees whether that one has returned, as SLURM takes a job that it has forgotten
# for a success.
_CONDITIONS = rf"""
names=$1; others=$2; clusters=$3; user=$4; shift 4
ask() {{ squeue --noheader --all --format=%F --name="$names" --user="$user" "$@" 2>&1; }}
fail() {{ printf '%s\n' "$listed" >&2; exit 1; }}
listed=$(ask ${{clusters:+--clusters="$clusters"}}) || fail
! printf '%s\n' "$listed" | grep error: | grep -Eivq '{STANDING}' || fail
ids=$(printf '%s\n' "$listed" | grep -E '^[0-9]+$' | sort -u | paste -s -d : -)
after="${{others}}${{others:+${{ids:+,}}}}${{ids:+afterany:$ids}}"
"""
_SUBMIT_AFTER = f"""{_CONDITIONS}exec sbatch --parsable ${{after:+--dependency="$after"}} "$@"
"""
# Before those, $1 is the host's Python, $2 the supervisor, and $3 the folder of a group whose items start one by one.
# $4 is how many elements come before these, and $5 how many these are. Those that find work start before all inputs
# have ended.
_SUBMIT_ONE_BY_ONE = rf"""
python=$1; supervise=$2; group=$3; first=$4; count=$5; shift 5
{_CONDITIONS}status=0
said=$(sbatch --parsable ${{after:+--dependency="$after"}} "$@") || status=$?
printf '%s\n' "$said"
[ "$status" = 0 ] || exit "$status"
number=$(printf '%s\n' "$said" | sed -n 's/^Submitted batch job \([0-9]*\).*$/\1/
    s/^ *\([0-9][0-9]*\)\(;.*\)*$/\1/p' | tail -n 1)
"$python" -I -S "$supervise" register "$group" "$number" "$first" "$count" "$others" </dev/null >/dev/null 2>&1
exit 0
"""
_MB = 2**20
# An errand unpacks up to four archives side by side.
_ERRAND_CORES, _ERRAND_MEMORY = 4, "4G"


def submit(host: Host, user: str, job: JobSpec) -> Submission:
    """Submit a job."""
    folder = _folder(host, job)
    return _submission(host, user, job, folder, _options(host, job, folder))


def elements(
    host: Host, user: str, job: JobSpec, numbers: range, largest: int
) -> Sequence[tuple[range, Submission]]:  # fmt: skip
    """Submit job arrays, as few as possible; together they run as many elements at once as the group allows."""
    if not largest:
        return _single_elements(host, user, job, numbers)
    arrays = [numbers[first : first + largest] for first in range(0, len(numbers), largest)]
    at_once = max(1, (job.group.at_once if job.group else 1) // len(arrays))
    folder = _folder(host, job)
    options = {**_options(host, job, folder), "output": posixpath.join(folder, layout.element_log("%A_%a"))}
    return [(each, _array(host, user, job, {**options, "array": f"1-{len(each)}%{at_once}"}, each)) for each in arrays]


def errand(host: Host, line: str, name: str, log: str, partition: str) -> Submission:
    """Run sbatch with the line itself, and with what the host's other jobs need, such as the account."""
    options = {
        "job-name": name, "output": log, "open-mode": "append", "export": _EXPORT,
        "cpus-per-task": _ERRAND_CORES, "mem": _ERRAND_MEMORY,
    }  # fmt: skip
    if host.defaults.time_s is not None:
        options["time"] = math.ceil(host.defaults.time_s / 60)
    options = {**with_host_options(options, host, 0), "partition": partition, "wrap": f"exec {line}"}
    argv = ("sbatch", "--parsable", *_as_words(options))
    return Submission("run", argv, posixpath.dirname(log), OBEYED, stop_at=answers.REPEATS)


def minutes(time_s: float) -> int:
    """Return the limit that SLURM is asked for: a minute behind that of the supervisor."""
    return math.ceil(time_s / 60) + 1


def _single_elements(host: Host, user: str, job: JobSpec, numbers: range) -> Sequence[tuple[range, Submission]]:
    """Submit each element as a job, where the site has no job arrays."""
    at_once = job.group.at_once if job.group else 1
    if at_once < len(numbers):
        raise ConfigError(
            f"{host.name} has no job arrays (MaxArraySize), to run {at_once} of {len(numbers)} jobs at once",
            host=host.name, hint="leave out max_parallel=, or use clusterfn.Session",
        )  # fmt: skip
    folder = _folder(host, job)
    options = {**_options(host, job, folder), "output": posixpath.join(folder, layout.element_log("%j"))}
    return [(range(each, each + 1), _submission(host, user, job, folder, options, str(each))) for each in numbers]


def _array(host: Host, user: str, job: JobSpec, options: Mapping[str, Any], elements: range) -> Submission:
    """Submit one array; the host lets its elements start as inputs end if items start one by one."""
    folder = _folder(host, job)
    request = _submission(host, user, job, folder, options, str(elements[0] - 1))
    if not (job.after and job.group and job.group.block):
        return request
    supervise = posixpath.join(job.bridge, layout.SUPERVISE)
    own = (job.host_python, supervise, folder, str(elements[0] - 1), str(len(elements)))
    shell, option, _, name, *words = request.argv
    return request._replace(argv=(shell, option, _SUBMIT_ONE_BY_ONE, name, *own, *words))


def _folder(host: Host, job: JobSpec) -> str:
    folder = layout.job_dir(job.root, job.id)
    if "%" in folder or "\\" in folder:
        message = f"{folder!r}: SLURM expands % and \\ in paths"
        raise ConfigError(message, host=host.name, hint="set `root:` to a folder without these characters")
    return folder


def _submission(
    host: Host, user: str, job: JobSpec, folder: str, options: Mapping[str, Any], *args: str
) -> Submission:  # fmt: skip
    argv: tuple[str, ...] = ("sbatch", "--parsable")
    if job.after:
        others, names = str(options.get("dependency", "")), ",".join(job.scheduler_names_of_dependencies())
        options = {name: value for name, value in options.items() if name != "dependency"}
        argv = ("/bin/sh", "-c", _SUBMIT_AFTER, "sh", names, others, host.clusters, user)
    argv = (*argv, *_as_words(options), posixpath.join(folder, layout.SCRIPT), *args)
    return Submission("run", argv, folder, OBEYED, stop_at=answers.REPEATS)


def _options(host: Host, job: JobSpec, folder: str) -> dict[str, Any]:
    resources = job.resources
    options: dict[str, Any] = {
        "job-name": layout.job_name(job.name, job.id),
        "chdir": folder,
        "output": posixpath.join(folder, layout.SCHEDULER_LOG),
        # A requeued job continues in the same file.
        "open-mode": "append",
        "export": _EXPORT,
        "cpus-per-task": resources.cores,
    }
    if resources.memory_bytes is not None:
        options["mem"] = f"{math.ceil(resources.memory_bytes / _MB)}M"
    # SLURM starts the job again after the loss of its node, even where the site's default forbids that.
    if job.retries or job.requeue:
        options["requeue"] = True
    time_s = job.group.element_s if job.group else resources.time_s
    # The supervisor enforces `time`. SLURM's limit is a minute later, where the site allows that.
    if time_s is not None:
        options["time"] = minutes(time_s)
    gpus = resources.gpus * resources.nodes if host.gpu_option == "gpus" else resources.gpus
    options = with_host_options(options, host, gpus, resources.gpu_type, job.host)
    nodes, tasks = resources.nodes, resources.tasks_per_node
    # Memory and GPUs are stated for each node.
    if nodes * tasks > 1:
        options.update({"nodes": nodes, "ntasks": nodes * tasks, "ntasks-per-node": tasks})
    # Of both options sbatch would obey the last.
    if job.retries or job.requeue:
        options.pop("no-requeue", None)
    return options


def with_host_options(
    options: Mapping[str, Any], host: Host, gpus: int, kind: str | None = None, of_call: Host | None = None
) -> dict[str, Any]:
    """Add what `slurm:` says.

    Args:
        of_call: The host as one call sees it, whose options are merged over those of the file.
    """
    from_host = dict((of_call or host).scheduler_options)
    words = from_host.pop("gres", "")
    if gpus and words is None and host.gpu_option == "gres":
        message = f"gpus={gpus} cannot be asked for: `slurm: gres:` is null for {host.name} ({host.source})"
        raise ConfigError(message, host=host.name, hint="remove that line, or set gpu_option: gpus")
    merged = {**options, **gres.gpu_options(host.gpu_option, gpus, words or "", kind)}
    if "mem" in merged and from_host.get("mem", "") is not None:
        from_host = {name: value for name, value in from_host.items() if not name.startswith("mem-per-")}
    if isinstance(from_host.get("partition"), Mapping):
        from_host["partition"] = from_host["partition"].get("gpu" if gpus else "cpu")
    merged.update(from_host)
    return {name: value for name, value in merged.items() if value is not None}


def _as_words(options: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items())
