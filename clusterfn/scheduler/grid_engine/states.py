"""What Grid Engine's words mean: states, reasons to wait, refusals of qsub, and how a job ended by qacct.

Numbers count before words: Univa, Altair and the older dialects word their messages otherwise. Nothing here fails on a
word that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

from clusterfn.bridge import layout
from clusterfn.bridge.supervisor import classify_exit
from clusterfn.config.spec import Host
from clusterfn.scheduler.base import FINAL, PENDING, RUNNING, UNKNOWN, Evidence, JobState, SchedulerVerdict, most_alive

_DOCUMENT = re.compile(r"<\?xml.*</job_info>", re.DOTALL)

# What a reason of `qstat -j` contains, and what it means. The first that is found counts.
_WAITS = (
    ("error state", "Grid Engine could not start it, and holds it"),
    ("hold state", "it is held; `qrls` releases it"),
    ("dependencies", "it waits for another job"),
    ("max_aj_instances", "as many elements run at once as were allowed"),
    ("execution time not reached", "it may not start before its start time"),
    ("because it offers only", "waiting until enough slots, memory or GPUs are free"),
    ("because it is full", "waiting until enough slots are free"),
    ("temporarily not available", "a host that it could run on does not answer"),
    ("is disabled", "a queue that it could run in is disabled"),
    ("overloaded", "the hosts that it could run on are too busy"),
    ("quota", "you have reached a resource quota"),
)
# The letters of a suspended job.
_STOPS = (("s", "by `qmod -sj`"), ("S", "with its queue"), ("T", "because its host is too busy"))
# What qsub says when it refuses, and one thing to do.
_REFUSALS = (
    ("unknown resource", "name the site's own resources below `grid_engine:`; `qconf -sc` lists them there"),
    ("unknown queue", "set `grid_engine: queue:` to one that `qconf -sql` lists there"),
    ("parallel environment", "set `grid_engine: parallel_environment:` to one that `qconf -spl` lists there"),
    ("project", "set `grid_engine: project:` to one that you may use (`qconf -sprjl` lists all)"),
    (
        "cannot run",
        "ask for no more cores, memory, GPUs or time than one host and its queue have (`qhost`, `qstat -F`)",
    ),
    ("no suitable queues", "ask for less, or set `grid_engine: queue:`"),
    ("tasks", "ask for fewer elements"),
    ("is not a valid object name", "give the call another name="),
    ("minimum user id", "ask the site's administrators to let this account submit jobs"),
    ("send", "Grid Engine's master does not answer; try again later"),
)
_SHARED = "`root:` must be on a file system that login host and execution hosts share"
_AGAIN = "call the function again"
_LOOK = "read scheduler.log of the job; then call the function again"
_TAIL = 5


def states(text: str) -> dict[str, JobState]:
    """Read a look: the lists of `qstat -xml`, then what `qstat -j` says of some of those that wait, by job name.

    Of several jobs of one name (tasks of an array, a submission that was repeated) the one most alive counts.
    """
    reasons = _reasons(text)
    return most_alive(
        (name, GridEngineState(_phase(state), state, reasons.get(number, ""), number))
        for number, name, state, _, _ in _listed(text)
    )


def _listed(text: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the number, name, state, tasks and state of the queue instance of each job in the documents of a look."""
    for document in _DOCUMENT.findall(text):
        try:
            tree = ElementTree.fromstring(document)
        except ElementTree.ParseError:
            # A document that was cut off says nothing; the others still count.
            continue
        queues = {id(job): queue for queue in tree.iter("Queue-List") for job in queue.iter("job_list")}
        for job in tree.iter("job_list"):
            values = [job.findtext(tag) or "" for tag in ("JB_job_number", "JB_name", "state", "tasks")]
            queue = queues.get(id(job))
            if values[0] and values[2]:
                yield values[0], values[1], values[2], values[3], "" if queue is None else queue.findtext("state") or ""


def _phase(state: str) -> str:
    """Return the phase by the letters, of which some count before others: `hRwq` waits, `dr` runs, `z` has ended."""
    if "z" in state:
        return FINAL
    if "q" in state:
        return PENDING
    return RUNNING if set(state) & set("rtsSTRd") else UNKNOWN


def _reasons(text: str) -> dict[str, str]:
    """Read why jobs wait, by number, from the blocks that `qstat -j` prints: the first reason, or the error."""
    reasons: dict[str, str] = {}
    number = ""
    for line in _DOCUMENT.sub("", text).splitlines():
        label, _, value = line.partition(":")
        if label == "job_number":
            number = value.strip()
        elif label.startswith("error reason"):
            reasons[number] = f"{value.strip()} (error state)"
        elif label == "scheduling info" and "turned off" not in value:
            reasons.setdefault(number, value.strip())
    return reasons


class GridEngineState(JobState):
    """A job as qstat has it."""

    __slots__ = ()

    @property
    def in_words(self) -> str:
        if self.phase != PENDING:
            return self.state
        meaning = next((meaning for text, meaning in _WAITS if text in self.reason.lower()), "")
        if meaning:
            return f"{meaning} ({self.reason})"
        return "it is held; `qrls` releases it" if "h" in self.state else self.reason or "waiting for its turn"

    @property
    def suspended(self) -> str:
        if self.phase != RUNNING:
            return ""
        why = next((why for letter, why in _STOPS if letter in self.state), "")
        return why and f"suspended {why}; this time does not count"

    @property
    def waits_for_jobs(self) -> bool:
        return "h" in self.state

    def hopeless(self, host: str) -> SchedulerVerdict | None:
        """Return a verdict on a job in Grid Engine's error state, which never passes by itself."""
        if self.phase != PENDING or "E" not in self.state:
            return None
        message = f"Grid Engine on {host} could not start this job, and will not retry"
        proof = (f"qstat: {self.state}, job {self.scheduler_id}", *filter(None, [self.reason]))
        hint = f"{_SHARED}; then call the function again"
        return SchedulerVerdict(layout.UNSATISFIABLE, message, proof, hint, stage="queue", withdraw=True)


def submit_hint(output: str, host: Host) -> str:
    """Return one thing to do about a refusal."""
    hint = next((hint for text, hint in _REFUSALS if text in output.lower()), "")
    if hint:
        return f"{hint} (host {host.name}, {host.source})"
    return f"compare `grid_engine:` of host {host.name} ({host.source}) with the site's documentation"


_FULL = re.compile(r"only \d+ jobs are allowed per (?:user|cluster)[^\n]*", re.IGNORECASE)


def full(output: str) -> str:
    """Return the words by which qsub says that Grid Engine takes no more jobs for now; else "".

    Example:
        >>> full("Unable to run job: job rejected: only 3 jobs are allowed per user (current job count: 3).\\nExiting.")
        'only 3 jobs are allowed per user (current job count: 3)'
    """
    match = _FULL.search(output)
    return match[0].rstrip(".") if match else ""


def explain(evidence: Evidence) -> SchedulerVerdict | None:
    """Return how the job ended, by its accounting, or that its host is lost; None while it may live."""
    number, _, task = evidence.scheduler_id.partition("_")
    listed = [job for job in _listed(evidence.answer) if job[0] == number and evidence.job in job[1]]
    own = [job for job in listed if not task or _has_task(job[3], int(task))]
    if own:
        queue = own[0][4]
        # The letter u means that the host of the queue instance does not report.
        if "u" not in queue:
            return None
        message = "the host that ran the job no longer reports to Grid Engine"
        proof = _proof(f"qstat: the queue instance is in state {queue}", evidence)
        return SchedulerVerdict(layout.NODE, message, proof, _AGAIN)
    names = re.findall("^jobname +(.*)$", evidence.answer, re.MULTILINE)
    is_other = bool(names) and not any(evidence.job in name for name in names)
    facts = _last_block(evidence.answer, evidence.job)
    if facts:
        return _ending(facts, evidence)
    if listed or not (is_other or "not found" in evidence.answer):
        # The record comes some seconds after the end, or Grid Engine does not answer now.
        return None
    message = "Grid Engine no longer knows the job, and has no record of its end"
    hint = "it was deleted while it waited (`qdel`), or its accounting cannot be read there: call the function again"
    proof = _proof((evidence.answer.strip().splitlines() or [""])[-1].strip(), evidence)
    return SchedulerVerdict(layout.LOST, message, proof, hint)


def _has_task(tasks: str, number: int) -> bool:
    """Whether "3", "3-9:1" or "3,5-9:2" has it."""
    for part in tasks.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        if first.isdecimal() and number in range(int(first), int(last or first) + 1, int(step or 1)):
            return True
    return False


def _last_block(text: str, job: str) -> dict[str, str]:
    """Read the facts of the job's last start: qacct prints a block for each, of other jobs of this number too."""
    blocks = re.split(r"^=+$", text, flags=re.MULTILINE)
    blocks = ["", *(block for block in blocks if re.search(rf"^jobname .*{job}", block, re.MULTILINE))]
    lines = [line.split(maxsplit=1) for line in blocks[-1].splitlines()]
    facts = {words[0]: words[1].strip() for words in lines if len(words) == 2}
    return facts if "failed" in facts and "exit_status" in facts else {}


# By the number that `failed` begins with; see sge_status(5).
_NODE_FAILURES = frozenset([19, 20, 21])
_NOT_STARTED = frozenset([*range(1, 12), 26, 27, 28, 29])
_ENFORCED, _RESCHEDULED, _KILLED, _BY_KILL = 37, 25, 100, 137


def _ending(facts: Mapping[str, str], evidence: Evidence) -> SchedulerVerdict | None:
    failed, status = _number(facts["failed"]), _number(facts["exit_status"])
    node = facts.get("hostname", "(unknown)")
    shown = ("hostname", "failed", "exit_status", "ru_wallclock", "maxvmem", "category")
    proof = _proof("qacct: " + " ".join(f"{name}={facts[name]}" for name in shown if name in facts), evidence)
    if failed == _RESCHEDULED:
        return None
    if failed == _ENFORCED:
        return _enforced(facts, proof)
    if failed == _KILLED and status == _BY_KILL:
        message = "the job was ended from outside by SIGKILL, as `qdel` does"
        hint = "if it was not you, ask the administrators; Grid Engine does not say who it was"
        return SchedulerVerdict(layout.CANCELLED, message, proof, hint)
    if failed in _NODE_FAILURES:
        return SchedulerVerdict(layout.NODE, f"the host {node} went down", proof, _AGAIN)
    if failed in _NOT_STARTED:
        return SchedulerVerdict(layout.LOST, f"the host {node} could not start the job", proof, _SHARED, "start")
    how = f"by signal {status - 128}" if status > 128 else f"with status {status}"
    return SchedulerVerdict(layout.LOST, f"the job's script ended {how} and left no result", proof, _LOOK)


def _enforced(facts: Mapping[str, str], proof: tuple[str, ...]) -> SchedulerVerdict:
    """Return the verdict on a job that was ended at a limit: one number means two, and the time says which it was."""
    limits = dict(re.findall(r"\b(h_rt|h_vmem)=([^,\s]+)", facts.get("category", "")))
    limit_s = limits.get("h_rt", "")
    if limit_s.isdecimal() and _number(facts.get("ru_wallclock", "")) < int(limit_s) and "h_vmem" in limits:
        message, hint = classify_exit.ended_for_memory("Grid Engine", f"its h_vmem={limits['h_vmem']} for each slot")
        return SchedulerVerdict(layout.MEMORY, message, proof, hint)
    if not limit_s and "h_vmem" in limits:
        message, hint = classify_exit.ended_for_memory_or_time("Grid Engine", "h_vmem")
        return SchedulerVerdict(layout.MEMORY, message, proof, hint)
    by_own_limit = classify_exit.ended_for_time("Grid Engine", f"limit of {limit_s} s")
    message, hint = by_own_limit if limit_s else classify_exit.ended_by_queue()
    return SchedulerVerdict(layout.TIME, message, proof, hint)


def _number(text: str) -> int:
    match = re.match(r"[0-9]+", text)
    return int(match[0]) if match else -1


def _proof(first: str, evidence: Evidence) -> tuple[str, ...]:
    return (first, *evidence.log.splitlines()[-_TAIL:])
