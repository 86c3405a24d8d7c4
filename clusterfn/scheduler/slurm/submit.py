"""SLURM: sbatch, squeue, scontrol and scancel as argv, and their output as facts.

Pure, like every scheduler; written for SLURM 17 and later, without accounting. `states` knows what its words mean.
Options are sent as `--name=value`, so that no value can be taken for an option.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import ClusterfnError, ConfigError, SubmitError, Unsatisfiable
from clusterfn.scheduler.base import (
    FINAL,
    PENDING,
    RUNNING,
    UNKNOWN,
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
from clusterfn.scheduler.slurm import INHERITED, gres, held, refusals, site
from clusterfn.scheduler.slurm import states as slurm_states

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec

# By list, so that nothing of the login's session leaks into the job: SLURM then makes the user's login environment on
# the node. HOME is there in any case. Without the site's proxies and certificates no download would work.
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_EXPORT = ",".join(["HOME", "USER", "LOGNAME", *_PROXIES, *map(str.upper, _PROXIES), *_CERTIFICATES])
# $1 the names of the jobs whose values it takes, $2 other conditions, $3 and $4 how squeue is asked. What is no longer
# listed is over: whether it has returned is for the job to see, as SLURM takes one that it has forgotten for a success.
_CONDITIONS = r"""
names=$1; others=$2; clusters=$3; user=$4; shift 4
ask() { squeue --noheader --all --format=%F --name="$names" --user="$user" "$@" 2>&1; }
listed=$(ask ${clusters:+--clusters="$clusters"}) || listed="error: $listed"
case $listed in *error:*) printf '%s\n' "$listed" >&2; exit 1 ;; esac
ids=$(printf '%s\n' "$listed" | grep -E '^[0-9]+$' | sort -u | paste -s -d : -)
after="${others}${others:+${ids:+,}}${ids:+afterany:$ids}"
"""
_SUBMIT_AFTER = f"""{_CONDITIONS}exec sbatch --parsable ${{after:+--dependency="$after"}} "$@"
"""
# Before those, $1 the host's Python, $2 the supervisor, $3 the folder of a group whose items start one by one, $4 how
# many elements come before these, $5 how many these are. Those that find work start before all inputs have ended.
_SUBMIT_ONE_BY_ONE = rf"""
python=$1; supervise=$2; group=$3; first=$4; count=$5; shift 5
{_CONDITIONS}said=$(sbatch --parsable ${{after:+--dependency="$after"}} "$@") || exit
printf '%s\n' "$said"
number=$(printf '%s\n' "$said" | sed -n 's/^ *\([0-9][0-9]*\)\(;.*\)*$/\1/p' | tail -n 1)
"$python" -I -S "$supervise" register "$group" "$number" "$first" "$count" "$others" </dev/null >/dev/null 2>&1
exit 0
"""
_MB = 2**20
_ERRAND_CORES, _ERRAND_MEMORY = 4, "4G"  # of a job that unpacks four archives side by side
_ID = re.compile(r"^([0-9]+)(?:;\S*)?\s*$", re.MULTILINE)
_NODES = re.compile(r"(.*)\|([0-9]{1,9})(?:\|([^|]*))?")
_MAYBE_SUBMITTED = re.compile(
    r"socket timed out|unable to contact slurm controller|send/recv|zero bytes|connection (?:refused|reset|timed out)"
    r"|communication|transport endpoint|slurm_receive_msg",
    re.IGNORECASE,
)
_ORDER = {RUNNING: 0, PENDING: 1, UNKNOWN: 2, FINAL: 3}


class Slurm(Scheduler):
    """Jobs through sbatch.

    Args:
        host: Its options for sbatch, and its name for messages.
        user: The user there, by name or number, from the agent's hello.
    """

    title = "SLURM"
    holds = True
    priority_hint = 'leave it out; slurm={"nice": 100} lets your other jobs go first'
    unset = INHERITED
    lists_all = "`squeue`"

    def __init__(self, host: Host, user: str) -> None:
        self.host = host
        self.user = user
        self._clusters = (f"--clusters={host.clusters}",) if host.clusters else ()  # which of several to ask

    def resolve_resources(self, asked: Resources) -> Resources:
        """Choose the type of GPU."""
        return asked._replace(gpu_type=gres.gpu_type(self.host, asked)) if asked.gpus else asked

    def submission(self, job: JobSpec) -> Submission:
        """Run sbatch with everything that the job and the host ask for."""
        folder = self._folder(job)
        return self._sbatch(job, folder, self._options(job, folder))

    def elements(self, job: JobSpec, numbers: range, largest: int) -> Sequence[tuple[range, Submission]]:
        """Submit job arrays, as few as possible; together they run as many elements at once as the group allows."""
        if not largest:
            return self._single_elements(job, numbers)
        arrays = [numbers[first : first + largest] for first in range(0, len(numbers), largest)]
        at_once = max(1, (job.group.at_once if job.group else 1) // len(arrays))
        folder = self._folder(job)
        output = posixpath.join(folder, layout.element_log("%A_%a"))
        options = {**self._options(job, folder), "output": output}
        return [
            (each, self._array(job, folder, {**options, "array": f"1-{len(each)}%{at_once}"}, each)) for each in arrays
        ]

    def _single_elements(self, job: JobSpec, numbers: range) -> Sequence[tuple[range, Submission]]:
        """Submit each element as a job, where the site has no job arrays."""
        at_once = job.group.at_once if job.group else 1
        if at_once < len(numbers):
            raise ConfigError(
                f"{self.host.name} has no job arrays (MaxArraySize), to run {at_once} of {len(numbers)} jobs at once",
                host=self.host.name, hint="leave out max_parallel=, or use clusterfn.Session",
            )  # fmt: skip
        folder = self._folder(job)
        options = {**self._options(job, folder), "output": posixpath.join(folder, layout.element_log("%j"))}
        return [(range(each, each + 1), self._sbatch(job, folder, dict(options), str(each))) for each in numbers]

    def _array(self, job: JobSpec, folder: str, options: dict[str, Any], elements: range) -> Submission:
        """Submit one array; the host lets its elements start as inputs end if items start one by one."""
        request = self._sbatch(job, folder, options, str(elements[0] - 1))
        if not (job.after and job.group and job.group.block):
            return request
        supervise = posixpath.join(job.bridge, layout.SUPERVISE)
        own = (job.host_python, supervise, folder, str(elements[0] - 1), str(len(elements)))
        shell, option, _, name, *rest = request.argv
        return request._replace(argv=(shell, option, _SUBMIT_ONE_BY_ONE, name, *own, *rest))

    def _folder(self, job: JobSpec) -> str:
        folder = layout.job_dir(job.root, job.id)
        if "%" in folder or "\\" in folder:
            message = f"{folder!r}: SLURM expands % and \\ in paths"
            raise ConfigError(message, host=self.host.name, hint="set `root:` to a folder without these characters")
        return folder

    def _sbatch(self, job: JobSpec, folder: str, options: dict[str, Any], *args: str) -> Submission:
        argv: tuple[str, ...] = ("sbatch", "--parsable")
        if job.after:
            others, names = str(options.pop("dependency", "")), ",".join(job.scheduler_names_of_dependencies())
            argv = ("/bin/sh", "-c", _SUBMIT_AFTER, "sh", names, others, self.host.clusters, self.user)
        argv = (*argv, *_as_words(options), posixpath.join(folder, layout.SCRIPT), *args)
        return Submission("run", argv, folder, self.unset, stop_at=slurm_states.REPEATS)

    def never_held(self, job: JobSpec) -> str:
        return held.never(job)

    def into_held(self, job: JobSpec, request: Submission) -> Submission:
        """Run `enter` of the supervisor, with the words of srun and those of sbatch."""
        words = str(job.host.scheduler_options.get("gres") or "")
        gpus = gres.gpu_options(self.host.gpu_option, job.resources.gpus, words, job.resources.gpu_type)
        return held.request(job, request, gpus, self._clusters)

    def notes(self, answer: Answer) -> Sequence[str]:
        return [*held.notes(answer), *refusals.notes(answer)]

    def again(self, request: Submission, answer: Answer) -> Submission | None:
        return refusals.again(request, answer, self._clusters)

    def limits_commands(self) -> Sequence[tuple[str, ...]]:
        """Ask scontrol, and sacctmgr where a site has accounting."""
        return site.limits_commands(self._clusters, self.user)

    def limits(self, told: Sequence[str], gpus: int) -> SchedulerLimits:
        """Read the limits of the partition that a job with so many GPUs goes to."""
        return site.read_limits(told, self._with_the_hosts({}, gpus).get("partition"))

    def errand(self, line: str, name: str, log: str, partition: str) -> Submission:
        """Run sbatch with the line itself, and with what the host's other jobs need, such as the account."""
        options = {
            "job-name": name, "output": log, "open-mode": "append", "export": _EXPORT,
            "cpus-per-task": _ERRAND_CORES, "mem": _ERRAND_MEMORY,
        }  # fmt: skip
        if self.host.defaults.time_s is not None:
            options["time"] = math.ceil(self.host.defaults.time_s / 60)
        options = {**self._with_the_hosts(options, 0), "partition": partition, "wrap": f"exec {line}"}
        argv = ("sbatch", "--parsable", *_as_words(options))
        return Submission("run", argv, posixpath.dirname(log), self.unset, stop_at=slurm_states.REPEATS)

    def _options(self, job: JobSpec, folder: str) -> dict[str, Any]:
        resources = job.resources
        options: dict[str, Any] = {
            "job-name": layout.job_name(job.name, job.id),
            "chdir": folder,
            "output": posixpath.join(folder, layout.SCHEDULER_LOG),
            "open-mode": "append",  # a requeued job continues in the same file
            "export": _EXPORT,
            "cpus-per-task": resources.cores,
        }
        if resources.memory_bytes is not None:
            options["mem"] = f"{math.ceil(resources.memory_bytes / _MB)}M"
        if job.retries or job.requeue:  # a lost node: SLURM starts it again, also where the site's default is not to
            options["requeue"] = True
        time_s = job.group.element_s if job.group else resources.time_s
        if time_s is not None:  # the supervisor keeps `time`; SLURM's limit is a minute behind it, where that may be
            options["time"] = math.ceil(time_s / 60) + 1
        in_all = self.host.gpu_option == "gpus"
        gpus = resources.gpus * resources.nodes if in_all else resources.gpus
        options = self._with_the_hosts(options, gpus, resources.gpu_type, job.host)
        nodes, tasks = resources.nodes, resources.tasks_per_node
        if nodes * tasks > 1:  # memory and GPUs are for each node
            options.update({"nodes": nodes, "ntasks": nodes * tasks, "ntasks-per-node": tasks})
        if job.retries or job.requeue:  # sbatch obeys the last of both
            options.pop("no-requeue", None)
        return options

    def _with_the_hosts(
        self, options: dict[str, Any], gpus: int, kind: str | None = None, host: Host | None = None
    ) -> dict[str, Any]:
        """Add what `slurm:` says.

        Args:
            host: The host as one call sees it, whose options are merged over those of the file.
        """
        given = dict((host or self.host).scheduler_options)
        words = given.pop("gres", "")
        if gpus and words is None and self.host.gpu_option == "gres":
            raise ConfigError(
                f"gpus={gpus} cannot be asked for: `slurm: gres:` is null for {self.host.name} ({self.host.source})",
                host=self.host.name,
                hint="remove that line, or set gpu_option: gpus",
            )
        options.update(gres.gpu_options(self.host.gpu_option, gpus, words or "", kind))
        if "mem" in options and given.get("mem", "") is not None:
            given = {name: value for name, value in given.items() if not name.startswith("mem-per-")}
        if isinstance(given.get("partition"), Mapping):
            given["partition"] = given["partition"].get("gpu" if gpus else "cpu")
        options.update(given)
        return {name: value for name, value in options.items() if value is not None}

    def submitted(self, answer: Answer) -> str:
        """Return the job's number, from `1234` or `1234;cluster`, whatever else a wrapper of the site prints."""
        found = _ID.findall(answer.out)
        if answer.rc in (0, None) and found:
            return str(found[-1])
        said = (answer.err or answer.out).strip()
        refused = (
            "sbatch did not answer in time" if answer.rc is None else f"sbatch refused the job (status {answer.rc})"
        )
        message = refused if answer.rc != 0 else "sbatch gave no job number"
        ambiguous = self.ambiguous(answer)
        kind: type[ClusterfnError] = SubmitError
        if not ambiguous and not slurm_states.can_be_met(said):
            kind, message = Unsatisfiable, f"{message}: SLURM on {self.host.name} can never run it"
        raise kind(
            message,
            host=self.host.name,
            stage="submit",
            evidence=said.splitlines(),
            hint=slurm_states.submit_hint(said, self.host),
            retryable=ambiguous,
        )

    def ambiguous(self, answer: Answer) -> bool:
        """Whether the controller did not answer, or made no sense: it may have taken the job."""
        if answer.rc == 0:
            return not _ID.search(answer.out)
        return answer.rc is None or bool(_MAYBE_SUBMITTED.search(answer.err))

    def refused_for_now(self, answer: Answer) -> str:
        return "" if _ID.search(answer.out) else slurm_states.full(answer.err)

    def watch_command(self) -> tuple[str, ...]:
        """Ask squeue for all of the user's jobs, those included that ended a short while ago.

        %S is what `squeue --start` shows: one question gives reasons and expected starts.
        """
        shown = ("--noheader", "--all", "--states=all", "--format=%i|%T|%r|%D|%S|%j", f"--user={self.user}")
        return ("squeue", *self._clusters, *shown)

    def parse_states(self, text: str) -> Mapping[str, JobState]:
        """Read the states by name; of several jobs of one name, such as elements, the one most alive counts."""
        states: dict[str, JobState] = {}
        for line in text.splitlines():
            first, _, name = line.strip().rpartition("|")
            number, _, state_and_reason = first.partition("|")
            state, _, told = state_and_reason.partition("|")
            if not number[:1].isdecimal() or not state:
                continue
            word = re.split(r"[+ ]", state, maxsplit=1)[0]
            counted = _NODES.fullmatch(told)
            reason, nodes, starts = (counted[1], int(counted[2]), counted[3] or "") if counted else (told, 1, "")
            phase = slurm_states.PHASES.get(word, UNKNOWN)
            start = starts if phase == PENDING and slurm_states.is_time(starts) else ""
            seen = JobState(phase, word, "" if reason == "None" else reason, number, nodes, start)
            if name not in states or _ORDER[seen.phase] < _ORDER[states[name].phase]:
                states[name] = seen
        return states

    def trouble(self, answer: Answer) -> str:
        """Say why squeue failed; it may complain and return 0 ("Invalid user"): then its list is worth nothing."""
        if answer.rc == 0 and "error:" not in answer.err:
            return ""
        lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
        silent = "squeue did not answer in time" if answer.rc is None else f"squeue ended with status {answer.rc}"
        return lines[0] if lines else silent

    def cancel_command(self, name: str) -> tuple[str, ...]:
        """Run scancel by name: it reaches a submission whose number never arrived."""
        return ("scancel", *self._clusters, f"--user={self.user}", f"--name={name}")

    def kill_command(self, name: str) -> tuple[str, ...]:
        """Have SIGKILL sent at once, and not only after KillWait."""
        return (*self.cancel_command(name), "--signal=KILL", "--full")

    def cancel_by_hand(self, name: str) -> str:
        return f"scancel --name {name}"

    def join_command(self, scheduler_id: str) -> tuple[str, ...]:
        """Run a step on the first node that shares what the job has (--overlap: SLURM 20.11); keep no output back."""
        step = ("--overlap", "--nodes=1", "--relative=0", "--ntasks=1", "--mpi=none", "--unbuffered", "--quiet")
        return ("srun", *self._clusters, f"--jobid={scheduler_id.partition('.')[0]}", *step)

    def element_log(self, number: int, scheduler_id: str) -> str:
        return layout.element_log(scheduler_id)

    def evidence_command(self, scheduler_id: str) -> tuple[str, ...]:
        """Ask scontrol, which knows a job for MinJobAge (300 s) after its end, and a step until its end."""
        if "." in scheduler_id:
            return ("scontrol", *self._clusters, "--oneliner", "show", "step", scheduler_id)
        return ("scontrol", *self._clusters, "--oneliner", "show", "job", scheduler_id)

    def explain(self, evidence: Evidence) -> SchedulerVerdict | None:
        return slurm_states.explain(evidence)

    def suspended(self, state: JobState) -> str:
        return slurm_states.suspended(state)

    def waits_for_jobs(self, state: JobState) -> bool:
        return state.reason == "Dependency"

    def hopeless(self, state: JobState) -> SchedulerVerdict | None:
        return slurm_states.hopeless(state, self.host) if state.phase == PENDING else None

    def loosen_command(self, state: JobState, time_s: float | None) -> tuple[str, ...]:
        return refusals.loosen(state, time_s, self._clusters)

    def in_words(self, state: JobState) -> str:
        return slurm_states.in_words(state)

    def partition(self, gpus: int) -> str:
        named = self.host.scheduler_options.get("partition")
        return str((named.get("gpu" if gpus else "cpu") if isinstance(named, Mapping) else named) or "")

    def gpu_types(self) -> Question[Sequence[str]]:
        """Ask for the nodes' gres, each kind of node once."""
        return Question(("sinfo", *self._clusters, "--noheader", "--all", "--format=%G"), gres.types)

    def gpu_nodes(self) -> Question[Sequence[NodeGpus]]:
        return Question(("scontrol", *self._clusters, "--details", "--oneline", "show", "node"), gres.nodes)

    def gpu_queue(self) -> Sequence[Question[Sequence[Waiting]]]:
        """Ask squeue, whose columns older versions do not all have."""
        shown = ("squeue", *self._clusters, "--noheader", "--all", "--states=PENDING")
        return [
            Question((*shown, option), partial(gres.waiting, old=old))
            for old, option in ((False, gres.COLUMNS_OPTION), (True, gres.OLD_COLUMNS_OPTION))
        ]


def _as_words(options: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items())
