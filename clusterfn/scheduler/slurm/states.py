"""What the words of SLURM mean: states, reasons to wait, and how a job ended.

Tables, and the functions that look things up in them. Nothing here fails on a word that it does not know.
"""

from __future__ import annotations

import datetime
import re

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor import classify_exit
from clusterfn.bridge.supervisor.text import in_one_line, shortened
from clusterfn.scheduler.base import FINAL, PENDING, RUNNING, Evidence, JobState, SchedulerVerdict

_PENDING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
# Another cluster of the federation has started the job.
_REVOKED = "REVOKED"
_RUNNING = (
    "RUNNING", "COMPLETING", "CONFIGURING", "POWER_UP_NODE", "RESIZING", _REVOKED, "SIGNALING", "STAGE_OUT", "STOPPED",
    "SUSPENDED",
)  # fmt: skip
_FINAL = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "TIMEOUT",
)  # fmt: skip
PHASES = {**dict.fromkeys(_PENDING, PENDING), **dict.fromkeys(_RUNNING, RUNNING), **dict.fromkeys(_FINAL, FINAL)}

# Reasons that pass, in words for the user who waits.
_WAITS = {
    "": "SLURM has not said why it waits",
    "AssociationJobLimit": "your group's limit of jobs is reached",
    "BeginTime": "it may not start before its begin time; after a requeue SLURM waits about two minutes",
    "Cleaning": "SLURM is still cleaning up after its previous start",
    "Dependency": "waiting for the jobs whose values it takes, or that `dependency` names",
    "JobArrayTaskLimit": "as many elements run at once as were allowed",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held; `scontrol release` releases it",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is not active",
    "Priority": "waiting for its turn",
    "Prolog": "its node is being prepared",
    "QOSGrpCpuLimit": "your group has reached its limit of cores",
    "QOSMaxJobsPerUserLimit": "you have reached your limit of running jobs",
    "ReqNodeNotAvail": "the nodes that it needs are down, drained or reserved",
    "Reservation": "it waits for its reservation",
    "Reserved for maintenance": "it would not end before the maintenance begins: with less `time=` it may start now",
    "Resources": "waiting until enough cores, memory or GPUs are free",
    "SchedDefer": "SLURM is delaying new starts",
}

_ADMIN = "ask the site's administrators, or change `slurm:` of this host"
_RELEASE = "ask the administrators why; `clusterfn cancel` withdraws the job"
_LESS = "ask for less, or set `slurm: partition:` to one with larger nodes"
FEWER = "ask for fewer `nodes=` or less on each, or set `slurm: partition:` to one with more or larger nodes"

# Reasons that never pass by themselves.
_HOPELESS = {
    "AccountNotAllowed": ("the account may not use this partition", "set `slurm: account:`"),
    "BadConstraints": ("no node can ever satisfy what it asks for", _LESS),
    "DependencyNeverSatisfied": ("it depends on a job that did not end as wanted", "remove `dependency` from `slurm:`"),
    "InvalidAccount": ("the account does not exist or is not yours", "set `slurm: account:`"),
    "MaxMemPerLimit": (
        "it asks for more memory than this site gives one job on a node",
        'ask for less: memory="..."; `scontrol show config` has the limit (MaxMemPerNode, MaxMemPerCPU)',
    ),
    "InvalidQOS": ("the QOS does not exist or is not yours", "set `slurm: qos:`"),
    "JobHoldMaxRequeue": ("it was restarted too often and is held", _RELEASE),
    # SLURM also gives this as its first answer to a time limit, before it gives the right one.
    "PartitionConfig": ("the partition cannot give one node what it asks for", _LESS),
    "PartitionNodeLimit": ("it asks for more nodes than the partition gives", FEWER),
    "PartitionTimeLimit": (
        "it asks for more time than the partition gives",
        'ask for less: time="...", or set `slurm: partition:`',
    ),
    "QOSNotAllowed": ("the QOS may not be used in this partition", "set `slurm: qos:` or `slurm: partition:`"),
    "QOSTimeLimit": ("it asks for more time than the QOS gives", "ask for less `time=`"),
    "launch_failed_requeued_held": ("its node could not start it, and SLURM holds it", _RELEASE),
    "user_env_retrieval_failed_requeued_held": (
        "its node could not create your login environment, and SLURM holds it",
        "shorten or fix your shell's start-up files, or set `slurm: {export: ALL}`",
    ),
}
_OF_SEVERAL = {"PartitionConfig": ("the partition does not have {nodes} nodes that are large enough", FEWER)}
_PER_JOB = re.compile(r"(?:QOS|Assoc)(?:Max|Min).*(?:PerJob|PerJobLimit|PerNode|PerNodeLimit)|(?:QOS|Assoc)Min\w+")


_LIMITS = (
    (re.compile(r"(?:QOS|Assoc)Grp\w*(?:Minutes|Wall)\w*"), "your group has used up the time that it may compute"),
    (re.compile(r"(?:QOS|Assoc)Grp\w+"), "your group has reached a limit of what it may use at once"),
    (re.compile(r"(?:QOS|Assoc)?Max\w+Per(?:User|Account)\w*|AssocMaxJobs\w*"), "you have reached a limit of yours"),
)


class SlurmState(JobState):
    """A job as squeue has it."""

    __slots__ = ()

    @property
    def in_words(self) -> str:
        """Say why a job waits, by SLURM's reason and what it means, and when SLURM expects to start it; or its state.

        Example:
            >>> SlurmState(PENDING, "PENDING", "Priority", expected_start="2026-11-21T14:35:00").in_words
            'expected start 21 Nov 14:35 host time; Priority: waiting for its turn'
        """
        if self.state == _REVOKED:
            return "another cluster of the federation has started it"
        if self.phase != PENDING:
            return self.state.lower().replace("_", " ")
        start = ""
        if is_time(self.expected_start):
            at = datetime.datetime.strptime(self.expected_start, TIME)
            start = f"expected start {at.day} {_MONTHS[at.month - 1]} {at:%H:%M} host time; "
        # "ReqNodeNotAvail, Reserved for maintenance" is a reason with details.
        begin, _, details = self.reason.partition(", ")
        # Older versions write "ReqNodeNotAvail(Unavailable:n1)".
        begin = begin.partition("(")[0] or self.reason
        limits = (words for pattern, words in _LIMITS if pattern.fullmatch(begin))
        known = (_WAITS.get(details) if details else "") or _WAITS.get(begin)
        meaning = known or _never(self)[0] or next(limits, "")
        if not meaning:
            return f"{start}SLURM says {self.reason}"
        return f"{start}{self.reason}: {meaning}" if self.reason else f"{start}{meaning}"

    @property
    def suspended(self) -> str:
        if self.state not in ("STOPPED", "SUSPENDED"):
            return ""
        return "suspended by SLURM, for a job that goes before it or by `scontrol suspend`; this time does not count"

    @property
    def waits_for_jobs(self) -> bool:
        return self.reason == "Dependency"

    def hopeless(self, host: str) -> SchedulerVerdict | None:
        if self.phase != PENDING:
            return None
        sentence, hint = _never(self)
        if not sentence and _PER_JOB.fullmatch(self.reason):
            sentence = "it asks for more than one job can have"
            hint = _LESS
        if not sentence:
            return None
        message = f"SLURM on {host} will never start this job: {sentence}"
        proof = (f"squeue: {self.state} ({self.reason}), job {self.scheduler_id}",)
        return SchedulerVerdict(layout.UNSATISFIABLE, message, proof, hint, stage="queue", withdraw=True)


TIME = "%Y-%m-%dT%H:%M:%S"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def is_time(text: str) -> bool:
    """Whether it is a time as SLURM writes it, and not "N/A"."""
    try:
        return bool(datetime.datetime.strptime(text, TIME))
    except ValueError:
        return False


def _never(state: JobState) -> tuple[str, str]:
    """Say why it will never start and what to do about it; "" twice if it may."""
    table = {**_HOPELESS, **_OF_SEVERAL} if state.nodes > 1 else _HOPELESS
    # The tables have a reason as scontrol shows it, with underscores; squeue shows "launch failed requeued held".
    sentence, hint = table.get(state.reason.replace(" ", "_"), ("", ""))
    return sentence.format(nodes=state.nodes), hint


_FACT = re.compile(r"\b(JobState|Reason|ExitCode|NodeList|TimeLimit)=(\S*)")
_MEMORY_TEXT = re.compile(r"exceeded (?:job |step )?memory limit|oom[-_]kill|out of memory", re.IGNORECASE)
# SLURM says the second of a task of an array that it still knows, or of a number that another job has now. A controller
# that is killed may forget its last submissions.
_FORGOTTEN = r"invalid job id specified|\bjob \S+ not found"
_PROLOG_TEXT = re.compile(r"error running slurm prolog", re.IGNORECASE)
_TAIL = 5

_AGAIN = "call the function again"
_PREEMPTED = classify_exit.CALL_AGAIN % "preempted"
_ENDINGS = {
    "BOOT_FAIL": (layout.NODE, "the node {node} could not be booted", _AGAIN),
    "CANCELLED": (layout.CANCELLED, "the job was cancelled through SLURM", "if it was not you, ask the administrators"),
    "DEADLINE": (layout.TIME, "the job passed its deadline", "remove `deadline` from `slurm:`"),
    "LAUNCH_FAILED": (layout.LOST, "the node {node} could not start the job", _RELEASE),
    "NODE_FAIL": (layout.NODE, "the node {node} went down", classify_exit.CALL_AGAIN % "node"),
    "OUT_OF_MEMORY": (layout.MEMORY, *classify_exit.ended_for_memory("SLURM")),
    "PREEMPTED": (layout.TAKEN_BACK, "SLURM took the node {node} back and does not restart the job", _PREEMPTED),
    "PROLOG": (layout.NODE, "the site's prolog failed on the node {node}", classify_exit.CALL_AGAIN % "node"),
    "RECONFIG_FAIL": (layout.NODE, "the node {node} could not be reconfigured", _AGAIN),
    "TIMEOUT": (layout.TIME, *classify_exit.ended_for_time("SLURM", "limit of {limit}")),
}


def explain(evidence: Evidence) -> SchedulerVerdict | None:
    """Say how the job ended, by scontrol and the end of scheduler.log; None while it may live."""
    facts = _facts(evidence.answer, evidence.job)
    if facts is None:
        return _forgotten(evidence, f"SLURM no longer knows the job: {evidence.scheduler_id} is another job now")
    if not facts:
        return _forgotten(evidence) if re.search(_FORGOTTEN, evidence.answer, re.IGNORECASE) else None
    if PHASES.get(facts["JobState"]) != FINAL:
        return None
    kind, message, hint, stage = _ending(facts, evidence.log)
    proof = "scontrol: " + " ".join(f"{name}={value}" for name, value in facts.items())
    return SchedulerVerdict(kind, message, (proof, *evidence.log.splitlines()[-_TAIL:]), hint, stage)


def _facts(answer: str, job: str) -> dict[str, str] | None:
    """Read the facts of a line: an array has a line for each element, and one that may live counts most.

    A job's own id is in its name and in its paths. None if all lines are of another job, which has the number now.
    """
    lines = [(line, dict(reversed(_FACT.findall(line)))) for line in answer.splitlines()]
    lines = [(line, facts) for line, facts in lines if "JobState" in facts]
    names = ("JobState", "Reason", "ExitCode", "NodeList", "TimeLimit")
    own = [{name: facts[name] for name in names if name in facts} for line, facts in lines if job in line]
    if lines and not own:
        return None
    alive = (facts for facts in own if PHASES.get(facts["JobState"]) != FINAL)
    return next(alive, own[0] if own else {})


def _ending(facts: dict[str, str], log: str) -> tuple[str, str, str, str]:
    code, _, signal = facts.get("ExitCode", "").partition(":")
    state = facts["JobState"]
    # A job with --no-requeue ends so. SLURM sets its node to DRAIN.
    state = "PROLOG" if state == "CANCELLED" and _PROLOG_TEXT.search(log) else state
    if state in _ENDINGS:
        kind, message, hint = _ENDINGS[state]
        node = facts.get("NodeList", "(null)").replace("(null)", "(unknown)")
        names = {"node": node, "limit": facts.get("TimeLimit", "(unknown)")}
        return kind, message.format(**names), hint, "scheduler"
    if _MEMORY_TEXT.search(log) and state == "FAILED":
        return (*_ENDINGS["OUT_OF_MEMORY"], "scheduler")
    if facts.get("Reason") == "JobLaunchFailure" and signal in ("", "0", _NO_LOG):
        hint = "`root:` must be on a file system that login node and compute nodes share"
        return layout.LOST, f"the node {facts.get('NodeList', '')} could not start the job", hint, "start"
    how = f"by signal {signal}" if signal not in ("", "0") else f"with status {code or '(unknown)'}"
    hint = _NO_PYTHON if code == _NOT_FOUND else _LOOK
    return layout.LOST, f"the job's script ended {how} and left no result", hint, "scheduler"


# SLURM reports this number, which is not that of a signal, for a script whose output file cannot be opened.
_NO_LOG = "53"
_NOT_FOUND = "127"  # the status of a shell for a program that is not there
_NO_PYTHON = "set `python:` of the host to a Python 3.6 or newer that the node has, or the image of `container-image`"
_LOOK = "read scheduler.log of the job; then call the function again"


def _forgotten(
    evidence: Evidence, message: str = "SLURM no longer knows the job, and it left no result"
) -> SchedulerVerdict:
    # The line of a job of others that has the number now is long.
    proof = (shortened(in_one_line(evidence.answer.strip()), 200), *evidence.log.splitlines()[-_TAIL:])
    return SchedulerVerdict(layout.LOST, message, proof, _LOOK)
