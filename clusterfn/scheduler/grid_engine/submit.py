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
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import ConfigError, SubmitError
from clusterfn.scheduler.base import (
    Answer,
    Evidence,
    JobState,
    NodeGpus,
    Question,
    Scheduler,
    SchedulerLimits,
    SchedulerVerdict,
    Submission,
    Waiting,
)
from clusterfn.scheduler.grid_engine import site, states
from clusterfn.scheduler.grid_engine.site import USUAL_NAMES

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec

# Variables of the login host that a job gets, without which no download would work at some sites.
_PASSED = (
    "http_proxy https_proxy ftp_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY FTP_PROXY ALL_PROXY NO_PROXY "
    "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE"
)
# `-w e` refuses what can never run, which would wait for ever otherwise, and does not say why; `-w v` does, and submits
# nothing.
_SUBMIT = f"""\
for name in {_PASSED}; do
    eval "[ -z \\"\\${{$name+x}}\\" ]" || set -- -v "$name" "$@"
done
qsub -terse -w e "$@" && exit
status=$?
qsub -w v "$@" >&2
exit "$status"
"""
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
_ID = re.compile(r"^([0-9]+)(?:\.[0-9]+-[0-9]+:[0-9]+)?\s*$", re.MULTILINE)
_LIMIT = re.compile(r"^(max_aj_tasks|max_aj_instances|max_u_jobs)\s+([0-9]{1,18})\s*$", re.MULTILINE)
_MAYBE_SUBMITTED = re.compile(r"commlib error|unable to send message|send error|got no response|timeout", re.IGNORECASE)
_SAYS_NOTHING = re.compile(r"Exiting\.$|verification: |Unable to run job: error: no suitable queues$|$")
_MISREAD = re.compile(r"[$:,%\\]")
_MB = 2**20
_OVERHEAD = 2**30  # of address space: h_vmem counts it, and `memory=`, which the supervisor keeps, what is in use
_TIME_MARGIN_S = 60  # the supervisor keeps `time`; Grid Engine's limit is behind it
_ERRAND_MEMORY = 4 * 2**30


class GridEngine(Scheduler):
    """Jobs through qsub.

    Args:
        host: Its options for qsub, and its name for messages.
        user: The user there, from the agent's hello.
    """

    title = "Grid Engine"
    starts_one_by_one = False  # qalter changes the dependency of a whole array, and not that of a task
    requeues = False
    priority_hint = "leave it out; `qalter -p -100 JOB` on the host lets your other jobs go first"
    lists_all = "`qstat -u '*'`"

    def __init__(self, host: Host, user: str) -> None:
        self.host = host
        self.user = user

    def resolve_resources(self, asked: Resources) -> Resources:
        """Reject what Grid Engine cannot be asked for."""
        hint = "leave it out; a queue or a resource of the site can be named below `grid_engine:` in clusterfn.yml"
        if asked.tasks_per_node > 1:
            message = f"tasks_per_node={asked.tasks_per_node}: Grid Engine has no srun that would start them"
            raise ConfigError(message, host=self.host.name, hint="start the processes in the function")
        if asked.nodes > 1:
            message = f"nodes={asked.nodes}: Grid Engine starts a job on one host, and not a process on each of several"
            raise ConfigError(message, host=self.host.name, hint="leave nodes= out; one call may use all of one host")
        for word, given in (("gpu_type", asked.gpu_type), ("gpu_memory", asked.gpu_memory_bytes)):
            if asked.gpus and given is not None:
                message = f"{word}= cannot be requested from Grid Engine: it counts GPUs without type or size"
                raise ConfigError(message, host=self.host.name, hint=hint)
        if asked.gpus:
            self._amount("gpus", asked.gpus, asked.cores)
        return asked

    # submission

    def submission(self, job: JobSpec) -> Submission:
        """Run qsub with everything that the job and the host ask for."""
        folder = self._folder(job)
        options = self._options(job, folder, posixpath.join(folder, layout.SCHEDULER_LOG))
        return self._qsub(folder, [*options, posixpath.join(folder, layout.SCRIPT)])

    def elements(self, job: JobSpec, numbers: range, largest: int) -> Sequence[tuple[range, Submission]]:
        """Submit job arrays, as few as possible; together they run as many elements at once as the group allows."""
        folder = self._folder(job)
        options = self._options(job, folder, posixpath.join(folder, layout.element_log("$JOB_ID_$TASK_ID")))
        arrays = [numbers[first : first + largest] for first in range(0, len(numbers), largest)]
        at_once = max(1, (job.group.at_once if job.group else 1) // len(arrays))
        script = posixpath.join(folder, layout.SCRIPT)
        return [
            (
                some,
                self._qsub(folder, [*options, "-t", f"1-{len(some)}", "-tc", str(at_once), script, str(some[0] - 1)]),
            )
            for some in arrays
        ]

    def errand(self, line: str, name: str, log: str, partition: str) -> Submission:
        """Run qsub with the line itself, and with what the host's other jobs need, such as the project."""
        options = ["-N", name, "-o", log, "-j", "y", "-S", "/bin/sh", "-b", "y", "-shell", "n"]
        options += self._requests(Resources(memory_bytes=_ERRAND_MEMORY, time_s=self.host.defaults.time_s))
        options += ["-q", partition] if partition else self._queue(0)
        return self._qsub(posixpath.dirname(log), [*options, *self._project(), "/bin/sh", "-c", f"exec {line}"])

    def _qsub(self, folder: str, arguments: Sequence[str]) -> Submission:
        return Submission("run", ("/bin/sh", "-c", _SUBMIT, "sh", *arguments), folder, self.unset)

    def _folder(self, job: JobSpec) -> str:
        folder = layout.job_dir(job.root, job.id)
        if _MISREAD.search(folder):
            message = f"{folder!r}: Grid Engine expands or splits paths at $ : , % and \\"
            raise ConfigError(message, host=self.host.name, hint="set `root:` to a folder without these characters")
        return folder

    def _options(self, job: JobSpec, folder: str, log: str) -> list[str]:
        """-C "": lines of the script that begin with #$ are no options."""
        name = layout.job_name(job.name, job.id)
        if name[0].isdecimal():
            message = f"name={job.name!r}: Grid Engine takes no name that begins with a digit"
            raise ConfigError(message, host=self.host.name, hint="begin name= with a letter")
        options = ["-N", name, "-wd", folder, "-o", log, "-j", "y", "-S", "/bin/sh", "-C", ""]
        options += ["-r", "y" if job.retries else "n"]  # a lost host: started again, where the site does that
        if job.after:  # a name that is no longer in the queue is over
            options += ["-hold_jid", ",".join(job.scheduler_names_of_dependencies())]
        asked = job.resources
        time_s = job.group.element_s if job.group else asked.time_s
        if asked.cores > 1:
            options += ["-pe", str(self._option("parallel_environment")), str(asked.cores)]
        return [*options, *self._requests(asked._replace(time_s=time_s)), *self._queue(asked.gpus), *self._project()]

    def _requests(self, asked: Resources) -> list[str]:
        """Return the options `-l`; each resource that Grid Engine multiplies is a slot's share."""
        wanted: dict[str, object] = dict(self._given("resources", {}))
        memory = self._option("memory")
        if asked.memory_bytes is not None and memory is not None:
            wanted[memory] = (
                f"{self._amount('memory', math.ceil((asked.memory_bytes + _OVERHEAD) / _MB), asked.cores)}M"
            )
        if asked.gpus:
            wanted[str(self._option("gpus"))] = self._amount("gpus", asked.gpus, asked.cores)
        if asked.time_s is not None:
            wanted["h_rt"] = math.ceil(asked.time_s) + _TIME_MARGIN_S
        return [word for name, value in wanted.items() for word in ("-l", f"{name}={value}")]

    def _amount(self, kind: str, wanted: int, slots: int) -> int:
        """Return what one slot asks for: memory is rounded up; GPUs that slots cannot share equally are rejected."""
        name = self._option(kind)
        if name is None:
            message = f"gpus={wanted} cannot be asked for: `grid_engine: gpus:` is null for {self.host.name}"
            raise ConfigError(
                f"{message} ({self.host.source})", host=self.host.name, hint="name the site's own resource"
            )
        if name in self._given("per_job", ()):
            return wanted
        if kind == "gpus" and wanted % slots:
            message = f"gpus={wanted} with cores={slots}: Grid Engine gives each slot the same number of GPUs"
            hint = f"ask for cores={wanted}; or, if `qconf -sc` says JOB for {name}: grid_engine: {{per_job: [{name}]}}"
            raise ConfigError(message, host=self.host.name, hint=hint)
        return math.ceil(wanted / slots)

    def _given(self, key: str, default: Any) -> Any:
        return self.host.scheduler_options.get(key, default)

    def _option(self, key: str) -> str | None:
        """Return the site's own name, or the usual one."""
        value: str | None = self._given(key, USUAL_NAMES[key])
        return value

    def _queue(self, gpus: int) -> list[str]:
        queue = self.partition(gpus)
        return ["-q", queue] if queue else []

    def _project(self) -> list[str]:
        project = self._given("project", None)
        return ["-P", str(project)] if project else []

    def submitted(self, answer: Answer) -> str:
        """Return the job's number, from `1234` or `1234.1-9:1`, whatever else a wrapper of the site prints."""
        found = _ID.findall(answer.out)
        if answer.rc == 0 and found:
            return str(found[-1])
        said = (answer.err or answer.out).strip()
        refused = "qsub did not answer in time" if answer.rc is None else f"qsub refused the job (status {answer.rc})"
        raise SubmitError(
            refused if answer.rc != 0 else "qsub gave no job number",
            host=self.host.name,
            stage="submit",
            evidence=[line for line in dict.fromkeys(said.splitlines()) if not _SAYS_NOTHING.match(line)],
            hint=states.submit_hint(said, self.host),
            retryable=self.ambiguous(answer),
        )

    def ambiguous(self, answer: Answer) -> bool:
        """Whether the master did not answer, or made no sense: it may have taken the job."""
        if answer.rc == 0:
            return not _ID.search(answer.out)
        return answer.rc is None or bool(_MAYBE_SUBMITTED.search(answer.err))

    def refused_for_now(self, answer: Answer) -> str:
        return "" if answer.rc == 0 else states.full(answer.err)

    # limits

    def limits_commands(self) -> Sequence[tuple[str, ...]]:
        """Ask qconf, whose 0 means no limit."""
        return (("qconf", "-sconf"),)

    def limits(self, told: Sequence[str], gpus: int) -> SchedulerLimits:
        known = {name: int(value) for name, value in _LIMIT.findall(told[0])}
        return SchedulerLimits(known.get("max_aj_tasks") or None, known.get("max_u_jobs") or None)

    # one job: its state, its log, its end

    def watch_command(self) -> tuple[str, ...]:
        """Ask qstat for all of the user's jobs, and why some of those that wait do so."""
        return ("/bin/sh", "-c", _WATCH, "sh", self.user)

    def parse_states(self, text: str) -> Mapping[str, JobState]:
        return states.states(text)

    def trouble(self, answer: Answer) -> str:
        if answer.rc == 0:
            return ""
        silent = "qstat did not answer in time" if answer.rc is None else f"qstat ended with status {answer.rc}"
        return next((line.strip() for line in answer.err.splitlines() if line.strip()), silent)

    def in_words(self, state: JobState) -> str:
        return states.in_words(state)

    def suspended(self, state: JobState) -> str:
        return states.suspended(state)

    def waits_for_jobs(self, state: JobState) -> bool:
        return "h" in state.state

    def hopeless(self, state: JobState) -> SchedulerVerdict | None:
        return states.hopeless(state, self.host)

    def element_log(self, number: int, scheduler_id: str) -> str:
        return layout.element_log(scheduler_id)

    def cancel_command(self, name: str) -> tuple[str, ...]:
        """Run qdel for what waits by this name: it reaches a submission whose number never arrived."""
        return ("/bin/sh", "-c", _CANCEL, "sh", self.user, name)

    def kill_command(self, name: str) -> tuple[str, ...]:
        """Run qdel, which kills what runs."""
        return ("qdel", name)

    def cancel_by_hand(self, name: str) -> str:
        return f"qdel {name}"

    def evidence_command(self, scheduler_id: str) -> tuple[str, ...]:
        """Ask qstat, which knows jobs that wait or run, and qacct, which knows those that have ended."""
        number, _, task = scheduler_id.partition("_")
        return ("/bin/sh", "-c", _EVIDENCE, "sh", number, task, self.user)

    def explain(self, evidence: Evidence) -> SchedulerVerdict | None:
        """Read what qacct says, once qstat no longer lists the job, or that its host is lost."""
        return states.explain(evidence)

    # queues and GPUs

    def partition(self, gpus: int) -> str:
        queue = self._given("queue", None)
        if isinstance(queue, Mapping):
            queue = queue.get("gpu" if gpus else "cpu")
        return queue or ""

    def gpu_nodes(self) -> Question[Sequence[NodeGpus]]:
        """Ask qhost for what is free, and qconf for what there is."""
        name = self._option("gpus") or ""
        return Question(
            ("/bin/sh", "-c", site.GPU_NODES_PROGRAM, "sh", name), lambda text: site.read_gpu_nodes(text, name)
        )

    def gpu_queue(self) -> Sequence[Question[Sequence[Waiting]]]:
        name = self._option("gpus") or ""
        return [Question(site.WAITING_COMMAND, lambda text: site.read_waiting(text, name))]
