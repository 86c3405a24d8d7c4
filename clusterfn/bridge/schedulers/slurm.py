"""SLURM inside a job, by its SLURM_ variables, and outside it, by scontrol, squeue and scancel; srun starts nodes."""

import os
import re

from ..layout import CANCELLED, NODE, PREEMPTED, TAKEN_BACK, TIME
from ..supervisor import classify_exit, publish
from ..supervisor.verdict import Verdict
from .base import HostScheduler, run_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_LOG_TAIL = 4096
# Every command of SLURM prints these complaints as long as the machine's configuration stays as it is, and succeeds all
# the same. They are an extended regular expression, which grep reads too, without regard to case.
STANDING = (
    "for slurmd?user|ignored|ignoring|ignore error|obsolete|defunct|deprecated|no longer supported|unrecognized key"
    "|pars(e|ing) error|[a-z][.]conf|getaddrinfo|unable to resolve|control machine address|duplicated? node"
    "|nodenames?=|plugin_load|plugin_peek|dlopen|spank:|cli_filter[:/]|munged is up"
)
# While a job ends, scontrol says COMPLETING whatever the reason; only slurmstepd's own line names it.
_ENDS = rb"slurmstepd.*\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+)[^*]*)? \*\*\*"
_ASKED = b"JOB REQUEUE"
_AGAIN = {"asked": "was asked to", "preempted": "preempted it, or was asked to", "node": "has given its node up"}
_STATES = {b"": "CANCELLED", b"TIME LIMIT": "TIMEOUT", b"PREEMPTION": "PREEMPTED", b"NODE FAILURE": "NODE_FAIL"}
_OOM_WORDS = (b"oom-kill", b"exceeded memory limit", b"Out Of Memory", b"OUT_OF_MEMORY")
_OBEYED = ("SLURM_", "SQUEUE_", "SCANCEL_", "SCONTROL_", "SINFO_")
_KEPT = ("SLURM_CONF", "SLURM_JWT")
_SHOW_JOB_S = 5
_SHOW_NODE_S = 10
_SQUEUE_S = 20
_SCANCEL_S = 30
_REQUEUE_S = 30


class SlurmOnHost(HostScheduler):
    launcher = "srun"
    launcher_hint = "try `srun --nodes=2 hostname` in a job of two nodes there"

    def submission_id(self) -> "Optional[str]":
        # SLURM_JOB_ID of an array's last task is the array's own.
        array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        if array and task:
            return "%s_%s" % (array, task)
        return os.environ.get("SLURM_JOB_ID") or None

    def restarts(self) -> int:
        return int(os.environ.get("SLURM_RESTART_COUNT") or 0)

    def node_name(self) -> str:
        return os.environ.get("SLURMD_NODENAME") or os.uname()[1]

    def partition(self) -> str:
        return os.environ.get("SLURM_JOB_PARTITION") or ""

    def end_time(self) -> "Optional[int]":
        # SLURM sets this variable since version 22.05.
        ends = os.environ.get("SLURM_JOB_END_TIME", "")
        return int(ends) if ends.isdecimal() else None

    def ending(self, log: str) -> "Optional[Verdict]":
        facts = show("job", str(self.submission_id()), _SHOW_JOB_S)
        said = _cause_by_log(log)
        # The log has the ends of earlier starts too.
        if not facts and (said != _ASKED or self.restarts()):
            return Verdict(None, "scontrol did not say whether SLURM starts the job again")
        if not facts or int(facts.get("Restarts") or 0) > self.restarts():
            # While a job's own processes live, SLURM waits for their end (COMPLETING).
            is_elsewhere = facts.get("JobState") in ("PENDING", "CONFIGURING", "RUNNING")
            cause = "node" if is_elsewhere else {_ASKED: "asked"}.get(said, "preempted")
            message = "SLURM starts the job again: it %s" % _AGAIN[cause]
            return Verdict(PREEMPTED, message, stage="scheduler", requeued={"cause": cause})
        state = facts.get("JobState", "")
        if state == "COMPLETING":
            state = _STATES.get(said, "")
        if state.startswith("CANCELLED"):
            return Verdict(CANCELLED, "the job was cancelled in the scheduler", stage="scheduler")
        if state in ("TIMEOUT", "DEADLINE"):
            message, hint = classify_exit.ended_for_time("the scheduler", "time limit")
            return Verdict(TIME, message, stage="scheduler", hint=hint)
        if state in ("PREEMPTED", "REVOKED"):
            message = "the scheduler took the resources back for another job"
            return Verdict(TAKEN_BACK, message, stage="scheduler", hint=classify_exit.CALL_AGAIN % "preempted")
        if state == "NODE_FAIL":
            message = "the node of the job went down"
            return Verdict(NODE, message, stage="scheduler", hint=classify_exit.CALL_AGAIN % "node")
        return None

    def starts_again_after(self, status: int) -> bool:
        # As in "RequeueExit = 3,100-105".
        _, config, _ = run_command(["scontrol", "show", "config"], _SHOW_JOB_S, _variables())
        listed = " ".join(re.findall(r"^RequeueExit(?:Hold)?\s*=(.*)", config, re.MULTILINE))
        ranges = re.findall(r"([0-9]+)(?:-([0-9]+))?", listed)
        return any(int(first) <= status <= int(last or first) for first, last in ranges)

    def requeue(self) -> str:
        argv = ["scontrol", "requeue", str(self.submission_id())]
        status, output, error = run_command(argv, _REQUEUE_S, _variables(), together=True)
        return "" if status == 0 else "scontrol requeue: %s" % (error or output.strip() or "status %s" % status)

    def find_oom(self, log: bytes) -> "Optional[str]":
        for line in log.split(b"\n"):
            if any(word in line for word in _OOM_WORDS):
                return "the scheduler said: " + line.decode("utf-8", "replace").strip()[:300]
        return None

    def cancel_waiting_elements(self) -> None:
        array = os.environ.get("SLURM_ARRAY_JOB_ID")
        if array:
            # A failure does no harm: an element that still starts finds nothing to do.
            run_command(["scancel", "--state=PENDING", array], _SCANCEL_S, _variables())

    def listed_jobs(self, clusters: str) -> "Optional[set[str]]":
        listed = _squeue("--states=all", "--format=%j", *(["--clusters=%s" % clusters] if clusters else []))
        return None if listed is None else {line.strip().rpartition(".")[2] for line in listed}

    def jobs_in(self, folder: str) -> "Optional[list[str]]":
        listed = _squeue("--format=%i|%Z")
        words = (line.strip().partition("|") for line in listed or ())
        return None if listed is None else [job for job, _, place in words if (place + "/").startswith(folder + "/")]

    def launch_command(self, nodes: int, tasks: int, cores: int, folder: str) -> "list[str]":
        # Memory and GPUs are the job's own there. Of several tasks on each node, that of rank 0 ends at once.
        others, first = (nodes - 1, ["--relative=1"]) if tasks == 1 else (nodes, ["--distribution=block"])
        return [
            "srun",
            "--nodes=%d" % others,
            "--ntasks=%d" % (others * tasks),
            "--ntasks-per-node=%d" % tasks,
            *first,
            "--cpus-per-task=%d" % cores,
            "--kill-on-bad-exit=1",
            "--wait=0",
            "--mpi=none",
            "--input=none",
            "--chdir=%s" % folder,
        ]

    def rank(self, tasks: int) -> int:
        number = int(os.environ["SLURM_PROCID"])
        # With one task on each node, the step runs on the other nodes alone and counts them from 0.
        return number + 1 if tasks == 1 else number

    def rank_variables(self, rank: int, nodes: int, tasks: int) -> "dict[str, str]":
        # srun gives a step its own numbers, and frameworks compare them with the job's.
        node, local, count = str(rank // tasks), str(rank % tasks), str(nodes * tasks)
        tasks_of_nodes = "%d(x%d)" % (tasks, nodes) if nodes > 1 else str(tasks)
        named = os.environ.get("SLURM_JOB_NODELIST", "")
        step = {
            "SLURM_STEP_NODELIST": named,
            "SLURM_STEP_NUM_NODES": str(nodes),
            "SLURM_STEP_NUM_TASKS": count,
            "SLURM_STEP_TASKS_PER_NODE": tasks_of_nodes,
        }
        return {
            **step,
            "SLURM_PROCID": str(rank),
            "SLURM_NODEID": node,
            "SLURM_LOCALID": local,
            "SLURM_NTASKS": count,
            "SLURM_NPROCS": count,
            "SLURM_NNODES": str(nodes),
            "SLURM_NTASKS_PER_NODE": str(tasks),
        }

    def node_address(self, name: str) -> str:
        return show("node", name, _SHOW_NODE_S).get("NodeAddr", "")


def _cause_by_log(log: str) -> bytes:
    """Return why SLURM ends a job, or has ended it before; b"" if it was cancelled, b"?" if its log does not say."""
    reasons = re.findall(_ENDS, publish.last_bytes(log, _LOG_TAIL))
    return bytes(reasons[-1]) if reasons else b"?"


def _squeue(*options: str) -> "Optional[list[str]]":
    """Return the lines that squeue prints about the user's jobs; None if it fails: they may lack some then."""
    argv = ["squeue", "--noheader", "--all", "--user=%d" % os.getuid(), *options]
    status, output, errors = run_command(argv, _SQUEUE_S, _variables())
    is_complete = status == 0 and all(is_standing(line) for line in errors.splitlines() if line.strip())
    return output.splitlines() if is_complete else None


def is_standing(line: str) -> bool:
    """Whether every command on that machine says this, and its answer can be believed."""
    return bool(re.search(STANDING, line, re.IGNORECASE))


def complaints(errors: str) -> "list[str]":
    """Return the errors in what a command of SLURM printed to stderr, without those that it always prints.

    Example:
        >>> complaints("squeue: error: Invalid user for SlurmUser slurm, ignored\\nsqueue: error: Invalid user: ada")
        ['squeue: error: Invalid user: ada']
    """
    return [line.strip() for line in errors.splitlines() if "error:" in line and not is_standing(line)]


def show(kind: str, name: str, patience_s: int) -> "dict[str, str]":
    """Return what scontrol says of a job or a node, NAME=VALUE; empty if it does not answer."""
    _, output, _ = run_command(["scontrol", "-o", "show", kind, name], patience_s, _variables())
    return {key: value for key, separator, value in (word.partition("=") for word in output.split()) if separator}


def _variables() -> "dict[str, str]":
    """Return those of this process without what SLURM's commands would obey: of the job, and of the user's own login.

    A login may name another cluster, narrow what squeue lists, or have scancel ask before it acts.
    """
    return {name: text for name, text in os.environ.items() if name.startswith(_KEPT) or not name.startswith(_OBEYED)}
