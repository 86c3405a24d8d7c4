"""Grid Engine: qsub, qstat, qdel and qacct as argv, and their output as facts.

Pure, like every scheduler; written for Son of Grid Engine 8.1, with what its other dialects share. `states` knows what
its words mean. Where one question takes several of its commands, a shell script runs them: the scripts are constants,
and every value is an argument of theirs.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from clusterfn.bridge import layout
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import ConfigError, SubmitError
from clusterfn.scheduler import base
from clusterfn.scheduler.grid_engine import site, states

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec

# $1 the user. Reasons are asked for the first of those that wait: the answer grows with each.
_WATCH = r"""
qstat -xml -u "$1" || exit
waiting=$(qstat -s p -u "$1" | awk '$1 ~ /^[0-9]+$/ { print $1 }' | sort -nu | head -n 20 | paste -s -d , -)
[ -z "$waiting" ] || qstat -j "$waiting" 2>/dev/null
exit 0
"""
# $1 the user, $2 the job's name. Only what waits is deleted: qdel kills what runs at once, before it could say how it
# ended; the file `cancel` ends that.
_CANCEL = r"""
waiting() {
    qstat -s p -r -u "$1" | awk -v name="$2" '
        $1 ~ /^[0-9]+$/ { job = $1; tasks = (NF > 8) ? $NF : "" }
        $1 == "Full" && $3 == name { print job, tasks }'
}
qstat -s p -u "$1" >/dev/null || exit
waiting "$1" "$2" | while read -r job tasks; do
    for range in $(printf '%s' "${tasks:--}" | tr , ' '); do
        if [ "$range" = - ]; then qdel "$job"; else qdel "$job" -t "$range"; fi
    done
done
[ -z "$(waiting "$1" "$2")" ] || { echo "qdel left the job in the queue" >&2; exit 1; }
"""
# $1 the job, $2 its task or "", $3 the user. The accounting of many sites is written some seconds after the end.
_EVIDENCE = r"""
listed=$(qstat -f -xml -u "$3" 2>&1)
status=$?
printf '%s\n' "$listed"
[ "$status" = 0 ] || exit "$status"
tries=7
case $listed in *"<JB_job_number>$1</JB_job_number>"*) tries=1 ;; esac
until record=$(qacct -j "$1" ${2:+-t "$2"} 2>&1); do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || break
    sleep 2.5
done
printf '%s\n' "$record"
"""
# `-w e` rejects what can never run, which would otherwise wait without end, but does not say why. `-w v` says why, and
# submits nothing.
_SUBMIT = f"""\
for name in {" ".join(base.PASSED_VARIABLES)}; do
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
# Some sites' wrappers of qsub leave -terse out.
_ID = re.compile(
    r"^(?:Your job(?:-array)? )?([0-9]+)(?:\.[0-9]+-[0-9]+:[0-9]+)?(?: \(.*\) has been submitted)?\s*$", re.MULTILINE
)
_LIMIT = re.compile(r"^(max_aj_tasks|max_aj_instances|max_u_jobs)\s+([0-9]{1,18})\s*$", re.MULTILINE)
_MAYBE_SUBMITTED = re.compile(r"commlib error|unable to send message|send error|got no response|timeout", re.IGNORECASE)
# qsub's own words when it has submitted nothing.
_REFUSED = re.compile("Unable to run job")
_SAYS_NOTHING = re.compile(r"Exiting\.$|verification: |Unable to run job: error: no suitable queues$|$")
_ON_ONE_HOST = "Grid Engine starts a job on one host, and not a process on each of several"


class GridEngine(base.Scheduler):
    """Jobs through qsub.

    Args:
        host: Its options for qsub, and its name for messages.
        user: The user there, from the agent's hello.
    """

    title = "Grid Engine"
    requeues = False
    priority_hint = "leave it out; `qalter -p -100 JOB` on the host lets your other jobs go first"

    def __init__(self, host: Host, user: str) -> None:
        self.host = host
        self.user = user

    def resolve_resources(self, resources: Resources) -> Resources:
        """Reject what Grid Engine cannot be asked for."""
        hint = "leave it out; a queue or a resource of the site can be named below `grid_engine:` in clusterfn.yml"
        if resources.tasks_per_node > 1:
            message = f"tasks_per_node={resources.tasks_per_node}: Grid Engine has no srun that would start them"
            raise ConfigError(message, host=self.host.name, hint="start the processes in the function")
        if resources.nodes > 1:
            message = f"nodes={resources.nodes}: {_ON_ONE_HOST}"
            raise ConfigError(message, host=self.host.name, hint="leave nodes= out; one call may use all of one host")
        for word, value in (("gpu_type", resources.gpu_type), ("gpu_memory", resources.gpu_memory_bytes)):
            if resources.gpus and value is not None:
                message = f"{word}= cannot be requested from Grid Engine: it counts GPUs without type or size"
                raise ConfigError(message, host=self.host.name, hint=hint)
        if resources.gpus:
            _amount(self.host, "gpus", resources.gpus, resources.cores)
        return resources

    # Submission

    def submission(self, job: JobSpec) -> base.Submission:
        """Run qsub with everything that the job and the host ask for."""
        folder = _folder(self.host, job)
        options = _options(self.host, job, folder, posixpath.join(folder, layout.SCHEDULER_LOG))
        return _submission(folder, [*options, posixpath.join(folder, layout.SCRIPT)])

    def elements(self, job: JobSpec, numbers: range, largest: int) -> Sequence[tuple[range, base.Submission]]:
        """Submit job arrays, as few as possible; together they run as many elements at once as the group allows."""
        folder = _folder(self.host, job)
        options = _options(self.host, job, folder, posixpath.join(folder, layout.element_log("$JOB_ID_$TASK_ID")))
        arrays = [numbers[first : first + largest] for first in range(0, len(numbers), largest)]
        at_once = max(1, (job.group.at_once if job.group else 1) // len(arrays))
        script = posixpath.join(folder, layout.SCRIPT)
        submissions = []
        for some in arrays:
            of_array = ["-t", f"1-{len(some)}", "-tc", str(at_once), script, str(some[0] - 1)]
            submissions.append((some, _submission(folder, [*options, *of_array])))
        return submissions

    def submitted(self, answer: base.Answer) -> str:
        """Return the job's number, from `1234` or `1234.1-9:1`, whatever else a wrapper of the site prints."""
        numbers = _ID.findall(answer.out)
        if answer.rc == 0 and numbers:
            return str(numbers[-1])
        output = (answer.err or answer.out).strip()
        evidence = [line for line in dict.fromkeys(output.splitlines()) if not _SAYS_NOTHING.match(line)]
        message = answer.without_number("qsub")
        hint = states.submit_hint(output, self.host)
        again = answer.may_be_submitted(_ID, _REFUSED, _MAYBE_SUBMITTED)
        name = self.host.name
        raise SubmitError(message, host=name, stage="submit", evidence=evidence, hint=hint, retryable=again)

    def refused_for_now(self, answer: base.Answer) -> str:
        return "" if answer.rc == 0 else states.full(answer.err)

    def limits(self, gpus: int) -> base.LimitsQuestion:
        return base.LimitsQuestion((("qconf", "-sconf"),), _read_limits)

    # One job: its state, its log, its end

    def watch_command(self) -> tuple[str, ...]:
        """Ask qstat for all of the user's jobs, and why some of those that wait do so."""
        return ("/bin/sh", "-c", _WATCH, "sh", self.user)

    def parse_states(self, text: str) -> Mapping[str, base.JobState]:
        return states.states(text)

    def trouble(self, answer: base.Answer) -> str:
        if answer.rc == 0:
            return ""
        silent = "qstat did not answer in time" if answer.rc is None else f"qstat ended with status {answer.rc}"
        return next((line.strip() for line in answer.err.splitlines() if line.strip()), silent)

    def cancel_command(self, name: str, *, kill: bool = False) -> tuple[str, ...]:
        """Run qdel for what waits by this name: it reaches a submission whose number never arrived.

        By itself, qdel kills what runs.
        """
        return ("qdel", name) if kill else ("/bin/sh", "-c", _CANCEL, "sh", self.user, name)

    def cancel_by_hand(self, name: str) -> str:
        return f"qdel {name}"

    def evidence_command(self, *scheduler_ids: str) -> tuple[str, ...]:
        """Ask qstat, which knows jobs that wait or run, and qacct, which knows those that have ended."""
        number, _, task = scheduler_ids[0].partition("_")
        return ("/bin/sh", "-c", _EVIDENCE, "sh", number, task, self.user)

    def explain(self, evidence: base.Evidence) -> base.SchedulerVerdict | None:
        """Read what qacct says, once qstat no longer lists the job, or that its host is lost."""
        return states.explain(evidence)

    def gpus(self) -> base.NodeGpusQuestions:
        return base.NodeGpusQuestions(_queue(self.host, 1))


def _read_limits(outputs: Sequence[str]) -> base.SchedulerLimits:
    """Read what qconf says, whose 0 means no limit."""
    limits = {name: int(value) for name, value in _LIMIT.findall(outputs[0])}
    return base.SchedulerLimits(limits.get("max_aj_tasks") or None, limits.get("max_u_jobs") or None)


def _requests(host: Host, resources: Resources) -> list[str]:
    """Return the options `-l`; each resource that Grid Engine multiplies is a slot's share."""
    amounts: dict[str, object] = dict(host.scheduler_options.get("resources", {}))
    memory = _option(host, "memory")
    if resources.memory_bytes is not None and memory is not None:
        needed = math.ceil((resources.memory_bytes + _OVERHEAD) / _MB)
        amounts[memory] = f"{_amount(host, 'memory', needed, resources.cores)}M"
    if resources.gpus:
        amounts[str(_option(host, "gpus"))] = _amount(host, "gpus", resources.gpus, resources.cores)
    if resources.time_s is not None:
        amounts["h_rt"] = math.ceil(resources.time_s) + _TIME_MARGIN_S
    return [word for name, value in amounts.items() for word in ("-l", f"{name}={value}")]


def _amount(host: Host, kind: str, total: int, slots: int) -> int:
    """Return what one slot asks for: memory is rounded up; GPUs that slots cannot share equally are rejected."""
    name = _option(host, kind)
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


def _option(host: Host, key: str) -> str | None:
    """Return the site's own name, or the usual one."""
    value: str | None = host.scheduler_options.get(key, site.USUAL_NAMES[key])
    return value


def _queue(host: Host, gpus: int) -> str:
    """Return the queue that clusterfn.yml names for jobs with so many GPUs; "" for the default."""
    named = host.scheduler_options.get("queue")
    if isinstance(named, Mapping):
        named = named.get("gpu" if gpus else "cpu")
    return named or ""


def _submission(folder: str, arguments: Sequence[str]) -> base.Submission:
    return base.Submission("run", ("/bin/sh", "-c", _SUBMIT, "sh", *arguments), folder)


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
        options += ["-pe", str(_option(host, "parallel_environment")), str(resources.cores)]
    options += _requests(host, resources._replace(time_s=time_s))
    queue, project = _queue(host, resources.gpus), host.scheduler_options.get("project")
    return [*options, *(["-q", queue] if queue else []), *(["-P", str(project)] if project else [])]
