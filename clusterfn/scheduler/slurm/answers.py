"""What sbatch says when it takes no job: whether a wait helps, and one thing to do.

Nothing here fails on a word that it does not know. Some sites refuse options that clusterfn itself adds: the same
request is then submitted once more without them. A site's plugins may also say something about a job that they take.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from clusterfn.bridge.schedulers.slurm import is_standing
from clusterfn.config.spec import Host
from clusterfn.config.units import exact_memory
from clusterfn.errors import did_you_mean
from clusterfn.scheduler.base import PENDING, Answer, JobState, Submission
from clusterfn.scheduler.slurm.states import FEWER

# sbatch prints this once and then retries silently for two minutes.
REPEATS = "sleeping and retrying"
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
                own = re.sub(r"^\w+: (?:error: )?|,? *" + REPEATS + r"\.?$", "", line.strip())
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
    *(
        (words, "ask for less memory than one node has (`sinfo -o '%N %m'`){usual}")
        for words in ("memory specification", "memory required by task")
    ),
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
# The options of sbatch that people write most, by their long names (https://slurm.schedmd.com/sbatch.html).
_OPTIONS = (
    "account", "array", "begin", "chdir", "clusters", "comment", "constraint", "contiguous", "core-spec",
    "cores-per-socket", "cpu-freq", "cpus-per-gpu", "cpus-per-task", "deadline", "dependency", "distribution",
    "error", "exclude", "exclusive", "export", "get-user-env", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node",
    "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "hold", "job-name", "kill-on-invalid-dep",
    "licenses", "mail-type", "mail-user", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network",
    "nice", "no-requeue", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu",
    "ntasks-per-node", "ntasks-per-socket", "open-mode", "output", "oversubscribe", "partition", "power", "prefer",
    "priority", "profile", "propagate", "qos", "reboot", "requeue", "reservation", "signal", "sockets-per-node",
    "spread-job", "switches", "thread-spec", "threads-per-core", "time", "time-min", "tmp", "tres-per-task",
    "use-min-nodes", "wckey",
)  # fmt: skip
# Options of sbatch that clusterfn itself adds, and that a site may not allow.
_ADDED = re.compile(r"--(export|mem|cpus-per-task|open-mode|requeue)(?![\w-])")


def submit_hint(output: str, host: Host) -> str:
    """Return one thing to do about a refusal."""
    lower = output.lower()
    added = _ADDED.search(lower)
    if added and added[1] not in host.scheduler_options:
        return f"clusterfn itself adds --{added[1]}: `slurm: {{{added[1]}: null}}` leaves it out ({host.source})"
    for text, hint in _REFUSALS:
        if text in lower:
            unknown = _UNKNOWN_OPTION.search(lower)
            hint += did_you_mean(unknown[1], _OPTIONS) if unknown else ""
            # The user may not know what a call without memory= asks for.
            memory = host.defaults.memory_bytes and exact_memory(host.defaults.memory_bytes)
            usual = f"; a call without memory= asks for {memory}, set by `defaults: {{memory: …}}`" if memory else ""
            return f"{hint.replace('{usual}', usual)} (host {host.name}, {host.source}; slurm= of the call comes first)"
    return f"compare `slurm:` of host {host.name} ({host.source}) with the site's documentation"


# Where slurm.conf does not state the nodes' memory, sinfo shows 1 MB. Such a site does not track memory, and rejects
# every amount. $1 is what sbatch printed, and $2 is the number of words of sinfo that follow it.
_IF_UNTRACKED = r"""
said=$1; words=$2; shift 2
ask=
while [ "$words" -gt 0 ]; do ask="$ask $1"; words=$((words - 1)); shift; done
# shellcheck disable=SC2086  # words without blanks
sizes=$(sinfo --noheader --format=%m $ask 2>/dev/null) || sizes=
case $sizes in
    '' | *[2-9]* | *1[0-9]*) printf '%s\n' "$said" >&2; exit 1 ;;
esac
printf '%s\n' "clusterfn: SLURM here does not track memory, and refuses jobs that ask for some: it is not asked; \
write slurm: {mem: null} for this host, so that it is not tried each time" >&2
exec "$@"
"""
_MEMORY = "--mem="
_TIME = re.compile(r"--time=([0-9]+)")
# SLURM's first answer to a time limit is PartitionConfig; the right reason follows later.
_TOO_LONG = ("PartitionTimeLimit", "PartitionConfig")


def again(request: Submission, answer: Answer, clusters: Sequence[str]) -> Submission | None:
    """Return the request of `Scheduler.again`: without the minute that is added, or without untracked memory."""
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
    if "memory specification" in errors and any(word.startswith(_MEMORY) for word in words):
        others = [word for word in words if not word.startswith(_MEMORY)]
        sinfo_words = [*clusters, *(word for word in others if word.startswith("--partition="))]
        words = ["/bin/sh", "-c", _IF_UNTRACKED, "sh", answer.err.strip(), str(len(sinfo_words)), *sinfo_words, *others]
        return request._replace(argv=tuple(words), forks=False)
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


def notes(answer: Answer) -> Iterator[str]:
    """Yield what the site's plugins said about a job that sbatch has submitted."""
    if answer.rc == 0:
        for line in answer.err.splitlines():
            match = None if is_standing(line) else _PLUGIN.fullmatch(line.strip())
            if match:
                yield f"SLURM says: {match[1]}"
