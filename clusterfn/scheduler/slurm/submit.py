"""SLURM: sbatch, squeue, scontrol and scancel as argv, and their output as facts.

Pure, like every scheduler; written for SLURM 17 and later, without accounting. `states` knows what its words mean.
Options are sent as `--name=value`, so that no value can be taken for an option.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from clusterfn.bridge.schedulers.slurm import complaints
from clusterfn.config.spec import Host, Resources
from clusterfn.errors import ClusterfnError, SubmitError, Unsatisfiable
from clusterfn.scheduler import base
from clusterfn.scheduler.slurm import OBEYED, sbatch, site
from clusterfn.scheduler.slurm import states as slurm_states
from clusterfn.scheduler.slurm.keys import refuse_unknown_gpus

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec

# Some sites' wrappers of sbatch leave --parsable out.
_ID = re.compile(r"^(?:Submitted batch job )?([0-9]+)(?:;\S*| on cluster \S+)?\s*$", re.MULTILINE)
# "sbatch: Job 58 to start at 2026-11-20T14:53:04 using 4 processors on nodes n1 in partition gpu", with --test-only.
_STARTS_AT = re.compile(r" to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_NODES = re.compile(r"(.*)\|([0-9]{1,9})(?:\|([^|]*))?")
_MAYBE_SUBMITTED = re.compile(
    r"socket timed out|unable to contact slurm controller|send/recv|zero bytes|connection (?:refused|reset|timed out)"
    r"|communication|transport endpoint|slurm_receive_msg",
    re.IGNORECASE,
)
# sbatch's own words when it has submitted nothing.
_REFUSED = re.compile(r"submission failed|unrecognized option|fatal:")


class Slurm(base.Scheduler):
    """Jobs through sbatch.

    Args:
        host: Its options for sbatch, and its name for messages.
        user: The user there, by name or number, from the agent's hello.
    """

    title = "SLURM"
    holds = True
    priority_hint = 'leave it out; slurm={"nice": 100} lets your other jobs go first'
    unset = OBEYED

    def __init__(self, host: Host, user: str) -> None:
        self.host = host
        self.user = user
        # On a site with several clusters, each command must name the one to ask.
        self._clusters = (f"--clusters={host.clusters}",) if host.clusters else ()

    def resolve_resources(self, resources: Resources) -> Resources:
        """Reject a type or a size of GPUs that SLURM does not know."""
        if resources.gpus:
            refuse_unknown_gpus(self.host, resources)
        return resources

    def submission(self, job: JobSpec) -> base.Submission:
        """Run sbatch with everything that the job and the host ask for."""
        return sbatch.submit(self.host, self.user, job)

    def elements(self, job: JobSpec, numbers: range, largest: int) -> Sequence[tuple[range, base.Submission]]:
        """Submit job arrays, as few as possible; reject a map where the site has none."""
        return sbatch.elements(self.host, self.user, job, numbers, largest)

    def notes(self, answer: base.Answer) -> Sequence[str]:
        return sbatch.notes(answer)

    def again(self, request: base.Submission, answer: base.Answer) -> base.Submission | None:
        return None if _ID.search(answer.out) else sbatch.again(request, answer)

    def limits(self, gpus: int) -> base.LimitsQuestion:
        """Ask about the configuration and the partition of a job with so many GPUs, and what one's associations allow.

        Only a site with accounting has associations.
        """

        def read(outputs: Sequence[str]) -> base.SchedulerLimits:
            return site.read_limits(outputs, sbatch.with_host_options({}, self.host, gpus).get("partition"))

        commands = (
            ("scontrol", *self._clusters, "show", "config"),
            ("scontrol", *self._clusters, "--oneliner", "show", "partition"),
            ("sacctmgr", "-nP", "show", "assoc", f"user={self.user}", "format=MaxSubmit,GrpSubmit"),
        )
        return base.LimitsQuestion(commands, read)

    def submitted(self, answer: base.Answer) -> str:
        """Return the job's number, from `1234` or `1234;cluster`, whatever else a wrapper of the site prints."""
        numbers = _ID.findall(answer.out)
        if answer.rc in (0, None) and numbers:
            return str(numbers[-1])
        output = (answer.err or answer.out).strip()
        message = answer.without_number("sbatch")
        maybe = answer.may_be_submitted(_ID, _REFUSED, _MAYBE_SUBMITTED)
        kind: type[ClusterfnError] = SubmitError
        if not maybe and any(text in output.lower() for text in sbatch.NEVER_MET):
            kind = Unsatisfiable
            message = f"{message}: SLURM on {self.host.name} can never run it"
        hint = sbatch.submit_hint(output, self.host)
        evidence = output.splitlines()
        raise kind(message, host=self.host.name, stage="submit", evidence=evidence, hint=hint, retryable=maybe)

    def test_command(self, job: JobSpec) -> tuple[str, ...]:
        """Have SLURM say when it would start the job; the clock of its own host says what time it is now."""
        return sbatch.test(self.host, job)

    def expected_wait_s(self, answer: base.Answer) -> float | None:
        starts, now = _STARTS_AT.search(answer.err), answer.out.strip()
        if starts is not None and slurm_states.is_time(starts[1]) and slurm_states.is_time(now):
            begins, asked = (datetime.datetime.strptime(text, slurm_states.TIME) for text in (starts[1], now))
            return max(0.0, (begins - asked).total_seconds())
        if answer.rc and not self.refused_for_now(answer):
            # It is refused in the same words as a job.
            self.submitted(answer)
        return None

    def refused_for_now(self, answer: base.Answer) -> str:
        return "" if _ID.search(answer.out) else sbatch.full(answer.err)

    def watch_command(self) -> tuple[str, ...]:
        """Ask squeue for all of the user's jobs, those included that ended a short while ago.

        %S is what `squeue --start` shows: one question gives reasons and expected starts.
        """
        shown = ("--noheader", "--all", "--states=all", "--format=%i|%T|%r|%D|%S|%j", f"--user={self.user}")
        return ("squeue", *self._clusters, *shown)

    def parse_states(self, text: str) -> Mapping[str, base.JobState]:
        return base.most_alive(_listed(text))

    def trouble(self, answer: base.Answer) -> str:
        """Say why squeue failed; it may complain and return 0 ("Invalid user"): an empty list is worth nothing then."""
        lines = complaints(answer.err)
        if answer.rc == 0 and (not lines or self.parse_states(answer.out)):
            return ""
        lines += [line.strip() for line in answer.err.splitlines() if line.strip()]
        silent = "squeue did not answer in time" if answer.rc is None else f"squeue ended with status {answer.rc}"
        return lines[0] if lines else silent

    def cancel_command(self, name: str, *, kill: bool = False) -> tuple[str, ...]:
        """Run scancel by name: it reaches a submission whose number never arrived.

        To kill it, SIGKILL is sent at once, and not only after KillWait.
        """
        at_once = ("--signal=KILL", "--full") if kill else ()
        return ("scancel", *self._clusters, f"--user={self.user}", f"--name={name}", *at_once)

    def cancel_by_hand(self, name: str) -> str:
        return f"scancel --name {name}"

    def join_command(self, scheduler_id: str) -> tuple[str, ...]:
        """Run a step on the first node that shares what the job has (--overlap: SLURM 20.11); keep no output back."""
        step = ("--overlap", "--nodes=1", "--relative=0", "--ntasks=1", "--mpi=none", "--unbuffered", "--quiet")
        return ("srun", *self._clusters, f"--jobid={scheduler_id}", *step)

    def evidence_command(self, *scheduler_ids: str) -> tuple[str, ...]:
        """Ask scontrol, which knows a job for MinJobAge (300 s) after its end."""
        return ("scontrol", *self._clusters, "--oneliner", "show", "job", scheduler_ids[0])

    def explain(self, evidence: base.Evidence) -> base.SchedulerVerdict | None:
        return slurm_states.explain(evidence)

    def loosen_command(self, state: base.JobState, time_s: float | None) -> tuple[str, ...]:
        return sbatch.loosen(state, time_s, self._clusters)

    def gpus(self) -> base.NodeGpusQuestions:
        """Ask sinfo for each kind of node once, and squeue."""
        named = self.host.scheduler_options.get("partition")
        shown = ("squeue", *self._clusters, "--noheader", "--all", "--states=PENDING")
        return base.NodeGpusQuestions(
            str((named.get("gpu") if isinstance(named, Mapping) else named) or ""),
            base.Question(("scontrol", *self._clusters, "--details", "--oneline", "show", "node"), site.gpu_nodes),
            base.Question((*shown, site.COLUMNS_OPTION), site.waiting_for_gpus),
            base.Question(("sinfo", *self._clusters, "--noheader", "--all", "--format=%G"), site.gpu_types),
        )


def _listed(text: str) -> Iterator[tuple[str, base.JobState]]:
    """Yield the name and the state of each job that squeue lists."""
    for line in text.splitlines():
        first, _, name = line.strip().rpartition("|")
        number, _, state_and_reason = first.partition("|")
        state, _, columns = state_and_reason.partition("|")
        if not number[:1].isdecimal() or not state:
            continue
        word = re.split(r"[+ ]", state, maxsplit=1)[0]
        counted = _NODES.fullmatch(columns)
        reason, nodes, starts = (counted[1], int(counted[2]), counted[3] or "") if counted else (columns, 1, "")
        phase = slurm_states.PHASES.get(word, base.UNKNOWN)
        start = starts if phase == base.PENDING and slurm_states.is_time(starts) else ""
        yield name, slurm_states.SlurmState(phase, word, "" if reason == "None" else reason, number, nodes, start)
