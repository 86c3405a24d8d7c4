"""What sbatch gets, by the call and by clusterfn.yml; and what it says when it takes no job: wait, or do one thing.

Options are sent as `--name=value`, so that no value can be taken for an option. Every value is an argument of a script.
Nothing here fails on a word that it does not know. A site may refuse the minute that clusterfn itself adds to a time
limit: the same request is then submitted once more without it. A site's plugins may also say
something about a job that they take.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.schedulers.slurm import STANDING, is_standing
from clusterfn.config.spec import Host
from clusterfn.config.units import exact_memory
from clusterfn.errors import ConfigError, did_you_mean
from clusterfn.scheduler.base import PASSED_VARIABLES, PENDING, Answer, JobState, Submission
from clusterfn.scheduler.slurm import OBEYED
from clusterfn.scheduler.slurm.keys import OPTIONS, counts_gpus, gpu_options
from clusterfn.scheduler.slurm.states import FEWER, TIME

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec

# A list keeps the other variables of the login's session out of the job: SLURM then makes the user's login environment
# on the node. HOME is there in any case.
_EXPORT = ",".join(["HOME", "USER", "LOGNAME", *PASSED_VARIABLES])
# $1 the names of the jobs whose values it takes, $2 other conditions, $3 and $4 how squeue is asked. A job that is no
# longer listed has ended. The job itself sees whether that one has returned, as SLURM takes a job that it has forgotten
# for a success. $5 is a pattern of names in their place, for `singleton`: each job of clusterfn has its own name.
_CONDITIONS = rf"""
names=$1; others=$2; clusters=$3; user=$4; like=$5; shift 5
ask() {{
    squeue --noheader --all --user="$user" ${{clusters:+--clusters="$clusters"}} "$@" 2>&1
}}
list() {{
    [ -n "$like" ] || {{ ask --format=%F --name="$names"; return; }}
    said=$(ask '--format=%F|%j') || {{ printf '%s\n' "$said"; return 1; }}
    printf '%s\n' "$said" | sed -E "s/^([0-9]+)\|($like)\$/\1/"
}}
fail() {{ printf '%s\n' "$listed" >&2; exit 1; }}
listed=$(list) || fail
! printf '%s\n' "$listed" | grep error: | grep -Eivq '{STANDING}' || fail
ids=$(printf '%s\n' "$listed" | grep -E '^[0-9]+$' | sort -u | paste -s -d : -)
after="${{others}}${{others:+${{ids:+,}}}}${{ids:+afterany:$ids}}"
"""
_SUBMIT_AFTER = f"""{_CONDITIONS}exec sbatch --parsable ${{after:+--dependency="$after"}} "$@"
"""
_MB = 2**20
_SINGLETON = "singleton"
_PER_CPU = "mem-per-cpu"


def submit(host: Host, user: str, job: JobSpec) -> Submission:
    """Submit a job."""
    folder = _folder(host, job)
    return _submission(host, user, job, folder, _options(host, job, folder))


def elements(host: Host, user: str, job: JobSpec, numbers: range, largest: int) -> Sequence[tuple[range, Submission]]:
    """Submit job arrays, as few as possible; together they run as many elements at once as the group allows."""
    if not largest:
        what = f"{host.name} has no job arrays (MaxArraySize), which a map needs"
        raise ConfigError(what, host=host.name, hint="use clusterfn.Session")
    arrays = [numbers[first : first + largest] for first in range(0, len(numbers), largest)]
    at_once = max(1, (job.group.at_once if job.group else 1) // len(arrays))
    folder = _folder(host, job)
    options = {**_options(host, job, folder), "output": posixpath.join(folder, layout.element_log("%A_%a"))}
    submissions = []
    for array in arrays:
        of_array = {**options, "array": f"1-{len(array)}%{at_once}"}
        submissions.append((array, _array(host, user, job, of_array, array)))
    return submissions


def test(host: Host, job: JobSpec) -> tuple[str, ...]:
    """Return the command by which SLURM says when it would start a job, after a line with its own time of day."""
    options = _options(host, job, "/")
    if "time" in options and job.resources.time_s is not None:
        # A site may refuse the minute that clusterfn adds, and take the job without it.
        options["time"] = minutes(job.resources.time_s) - 1
    options.update({"test-only": True, "wrap": "true"})
    return ("/bin/sh", "-c", f'date +{TIME}; exec sbatch "$@"', "sh", *_as_words(options))


def minutes(time_s: float) -> int:
    """Return the limit that SLURM is asked for: a minute behind that of the supervisor."""
    return math.ceil(time_s / 60) + 1


def _array(host: Host, user: str, job: JobSpec, options: Mapping[str, Any], elements: range) -> Submission:
    return _submission(host, user, job, _folder(host, job), options, str(elements[0] - 1))


def _folder(host: Host, job: JobSpec) -> str:
    folder = layout.job_dir(job.root, job.id)
    if "%" in folder or "\\" in folder:
        message = f"{folder!r}: SLURM expands % and \\ in paths"
        raise ConfigError(message, host=host.name, hint="set `root:` to a folder without these characters")
    return folder


def _submission(host: Host, user: str, job: JobSpec, folder: str, options: Mapping[str, Any], *args: str) -> Submission:
    argv: tuple[str, ...] = ("sbatch", "--parsable")
    others = str(options.get("dependency", "")).split(",")
    if job.after or _SINGLETON in others:
        names = job.scheduler_names_of_dependencies()
        like = ""
        if _SINGLETON in others:
            own = layout.job_name(job.name, job.id).rpartition(".")[0]
            like = "|".join([own, f"{own}.[0-9a-f]{{16}}", *names]).replace(".", "[.]")
        options = {name: value for name, value in options.items() if name != "dependency"}
        rest = ",".join(condition for condition in others if condition != _SINGLETON)
        argv = ("/bin/sh", "-c", _SUBMIT_AFTER, "sh", ",".join(names), rest, host.clusters, user, like)
    argv = (*argv, *_as_words(options), posixpath.join(folder, layout.SCRIPT), *args)
    return Submission("run", argv, folder, OBEYED, stop_at=_REPEATS)


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
        megabytes = math.ceil(resources.memory_bytes / _MB)
        options.update(_memory(host, job.host, megabytes, resources.cores * resources.tasks_per_node))
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
    # Whatever the site's default is, SLURM starts a job again only where its user has allowed that.
    allowed, _ = (options.pop(name, None) for name in ("requeue", "no-requeue"))
    if allowed or job.retries or job.requeue or not job.restarts:
        options["requeue" if job.restarts else "no-requeue"] = True
    return options


def _memory(host: Host, of_call: Host, megabytes: int, cpus: int) -> dict[str, str]:
    """Return the option for the memory of a node: for each CPU where the host wants that, or has it in place of mem."""
    said = of_call.scheduler_options
    if host.memory_as == _PER_CPU or (said.get("mem", "") is None and said.get(_PER_CPU)):
        return {_PER_CPU: f"{math.ceil(megabytes / cpus)}M"}
    return {"mem": f"{megabytes}M"}


def with_host_options(
    options: Mapping[str, Any], host: Host, gpus: int, kind: str | None = None, of_call: Host | None = None
) -> dict[str, Any]:
    """Add what `slurm:` says; `of_call` is the host as one call sees it, with the call's options over those."""
    from_host = dict((of_call or host).scheduler_options)
    by_script = counts_gpus(from_host)
    words = from_host.pop("gres", "")
    if gpus and words is None and host.gpu_option == "gres" and not by_script:
        message = f"gpus={gpus} cannot be asked for: `slurm: gres:` is null for {host.name} ({host.source})"
        raise ConfigError(message, host=host.name, hint="remove that line, or set gpu_option: gpus")
    asked = gpu_options(host.gpu_option, gpus, words or "", kind)
    if by_script:
        # Of the host's own words its type of GPU is left out.
        counted = counts_gpus({"gres": words})
        asked = {"gres": words} if counted else gpu_options("gres", 0, words or "", None)
    merged = {**options, **asked}
    if _PER_CPU in merged or ("mem" in merged and from_host.get("mem", "") is not None):
        from_host = {name: value for name, value in from_host.items() if not name.startswith("mem-per-")}
    if isinstance(from_host.get("partition"), Mapping):
        from_host["partition"] = from_host["partition"].get("gpu" if gpus else "cpu")
    merged.update(from_host)
    return {name: value for name, value in merged.items() if value is not None}


def _as_words(options: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items())


# sbatch prints this once and then retries silently for two minutes.
_REPEATS = "sleeping and retrying"
# What sbatch says when it takes no more jobs for now, and what that means, in SLURM 17 to 24. Since about version 19 it
# names the limit of an account or a QOS. Before, its words are the same for a job that can never run.
_FULL = (
    (r"unable to accept job|job queue full", "SLURM has as many jobs as it can hold"),
    (r"submission failed: resource temporarily unavailable", "SLURM has as many jobs as it can hold"),
    (r"(?:QOS|Assoc)MaxSubmit", "you have as many jobs as you may have there"),
    (r"controller (?:is )?in standby mode", "another controller is taking over"),
    (r"rate limit exceeded", "SLURM takes no more requests of yours at this moment"),
    (r"unable to create job record", "SLURM cannot take it at this moment"),
    (r"submissions disabled", "the site takes no new jobs for now"),
    (
        r"\bfork: .*(?:temporarily unavailable|allocate memory)|\bcan(?:no|')t fork",
        "the login node has no process for it now",
    ),
    (r"(?:QOS|Assoc)GrpSubmit", "your group has as many jobs as it may have there"),
)


def full(output: str) -> str:
    """Return the line by which sbatch says that SLURM takes no more jobs for now, and what it means; else "".

    Example:
        >>> full("sbatch: error: AssocMaxSubmitJobLimit\\nsbatch: error: Batch job submission failed: ...")
        'AssocMaxSubmitJobLimit: you have as many jobs as you may have there'
    """
    for line in output.splitlines():
        for words, meaning in _FULL:
            if re.search(words, line, re.IGNORECASE):
                own = re.sub(r"^\w+: (?:error: )?|,? *" + _REPEATS + r"\.?$", "", line.strip())
                return f"{own}: {meaning}"
    return ""


# What sbatch says when it refuses -> one thing to do. The first that is found counts.
_REFUSALS = (
    ("configuration source", "clusterfn check finds what a login shell knows of SLURM: add it as `scheduler_env:`"),
    ("invalid partition", "set `slurm: partition:` to one that `sinfo` lists there"),
    ("no partition specified", "this site has no default partition: set `slurm: partition:` to one that `sinfo` lists"),
    ("invalid account", "set `slurm: account:` to one that `sacctmgr show user $USER withassoc` lists"),
    ("invalid qos", "set `slurm: qos:` to one that you may use"),
    ("violates accounting/qos policy", "ask for less, or set `slurm: qos:` or `slurm: account:`"),
    (
        "partition not available",
        "that partition takes no jobs: set `slurm: partition:` to one that `sinfo` shows as up",
    ),
    ("group not permitted", "set `slurm: partition:` to one that your groups may use"),
    ("requested reservation", "set `slurm: reservation:` to one that `scontrol show reservation` lists for you"),
    ("invalid wckey", "set `slurm: wckey:` to one that `sacctmgr show user $USER withassoc` lists"),
    ("invalid user id", "SLURM's controller does not know your account: ask the site's administrators"),
    ("authentication", "its munge or a clock there is wrong: show its administrators what `munge -n | unmunge` prints"),
    ("error writing script", "SLURM's controller cannot store jobs now: tell the site's administrators"),
    (
        "memory specification",
        "ask for less memory than one node has (`sinfo -o '%N %m'`){usual}; where that shows 1, SLURM does not track "
        "memory: `slurm: {mem: null}`",
    ),
    ("memory required by task", "ask for less memory than one node has (`sinfo -o '%N %m'`){usual}"),
    (
        "requested node configuration",
        "ask for no more cores, memory or GPUs, of a gpu_type=, than one node has (`sinfo -o '%N %c %m %G'`){usual}",
    ),
    ("time limit specification required", 'this site wants a time limit: set `time="1h"`, or `defaults: {time: 1h}`'),
    ("requested time limit", 'ask for another `time="..."`, or set `slurm: partition:`'),
    ("processors requested", "ask for fewer cores="),
    ("cpu count", "ask for fewer cores=, or as many as the rules of the site want"),
    ("generic resource", "set `gpu_type=`, `gpu_option:` or `slurm: {gres: gpu:KIND}` to what `sinfo -o %G` shows"),
    ("node count specification", FEWER),
    ("invalid entry for --cluster", "this site lists no such cluster: change or remove `slurm: clusters:`"),
    ("invalid license", "set `slurm: licenses:` to what `scontrol show licenses` lists there"),
    ("invalid feature", "set `slurm: constraint:` to what `sinfo -o '%N %f'` shows there"),
    ("invalid job array", "ask for fewer elements"),
    ("unspecified error", "the rules of the site refused it, in the words above: change `slurm:` accordingly"),
    ("unrecognized option", "remove that option from `slurm:`"),
    ("gres specification", "set `gpu_type=` as `sinfo -o %G` shows it there"),
    ("no space left", "free some space in `root:` on the host"),
    ("unable to contact slurm controller", "SLURM's controller does not answer; try again later"),
    ("socket timed out", "SLURM's controller does not answer; try again later"),
)


# Of those, what no wait changes: the call asks for what this site does not have, or gives to no one.
NEVER_MET = (
    "invalid partition", "no partition specified", "invalid account", "invalid qos", "memory specification",
    "memory required by task", "requested node configuration", "requested time limit", "generic resource",
    "node count specification", "invalid license", "invalid feature",
)  # fmt: skip


_UNKNOWN_OPTION = re.compile(r"unrecognized option '--([\w-]+)")
# Options of sbatch that clusterfn itself adds, and that a site may not allow.
_ADDED = re.compile(r"--(export|mem|cpus-per-task|open-mode|requeue)(?![\w-])")


def submit_hint(output: str, host: Host) -> str:
    """Return one thing to do about a refusal."""
    lower = output.lower()
    where = f"host {host.name}, {host.source}; slurm= of a call, --slurm NAME=VALUE and #SBATCH lines come first"
    added = _ADDED.search(lower)
    if _PER_CPU in lower and host.memory_as != _PER_CPU and not host.scheduler_options.get(_PER_CPU):
        return f"write `memory_as: {_PER_CPU}` for this host ({host.source})"
    if added and added[1] not in host.scheduler_options:
        return f"clusterfn itself adds --{added[1]}: `slurm: {{{added[1]}: null}}` leaves it out ({host.source})"
    for text, hint in _REFUSALS:
        if text in lower:
            unknown = _UNKNOWN_OPTION.search(lower)
            hint += did_you_mean(unknown[1], OPTIONS) if unknown else ""
            # The user may not know what a call without memory= asks for.
            memory = host.defaults.memory_bytes and exact_memory(host.defaults.memory_bytes)
            usual = f"; a call without memory= asks for {memory}, set by `defaults: {{memory: …}}`" if memory else ""
            return f"{hint.replace('{usual}', usual)} ({where})"
    return f"compare `slurm:` with the site's documentation ({where})"


_TIME = re.compile(r"--time=([0-9]+)")
# SLURM's first answer to a time limit is PartitionConfig; the right reason follows later.
_TOO_LONG = ("PartitionTimeLimit", "PartitionConfig")


def again(request: Submission, answer: Answer) -> Submission | None:
    """Return the request of `Scheduler.again`: without the minute that is added."""
    errors = answer.err.lower()
    if not answer.rc:
        return None
    words = list(request.argv)
    times = [(place, int(match[1])) for place, word in enumerate(words) if (match := _TIME.fullmatch(word))]
    if times and any(text in errors for text in ("requested time limit", "qos policy")):
        place, minutes = times[-1]
        # The form with seconds shows that the shorter time has been tried already.
        words[place] = f"--time={minutes - 1}:00"
        return request._replace(argv=tuple(words)) if minutes > 1 else None
    return None


def loosen(state: JobState, time_s: float | None, clusters: Sequence[str]) -> tuple[str, ...]:
    """Return the command of `Scheduler.loosen_command`, which takes back the minute that clusterfn has added.

    A site may take a job that is longer than its partition allows, and hold it. The command names the whole limit and
    no difference, so each program that follows the job says the same.
    """
    number = re.match("[0-9]+", state.scheduler_id)
    if state.phase != PENDING or state.reason not in _TOO_LONG or number is None or time_s is None:
        return ()
    return ("scontrol", *clusters, "update", f"JobId={number[0]}", f"TimeLimit={math.ceil(time_s / 60)}")


_PLUGIN = re.compile(r"sbatch: (?:lua: )?(.*\S)")


def notes(answer: Answer) -> Sequence[str]:
    """Return what the site's plugins said about a job that sbatch has submitted."""
    lines = answer.err.splitlines() if answer.rc == 0 else []
    said = [match[1] for line in lines if not is_standing(line) and (match := _PLUGIN.fullmatch(line.strip()))]
    return [f"SLURM says: {text}" for text in said]
