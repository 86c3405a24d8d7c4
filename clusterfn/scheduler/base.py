"""The interface of a scheduler on this side: it builds commands, reads their output, answers questions about itself.

Implementations (`slurm`, `grid_engine`, `bare`) are pure: no I/O, no clock, no state, so that a test needs no cluster.
The rest of the library asks these questions and never compares the name of a scheduler. What a scheduler means inside
of a job on the host is `bridge.schedulers`, whose `registry` has all schedulers. Nothing here raises about a job: a
conclusion counts only once the host has published it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from clusterfn.bridge import layout
from clusterfn.config.spec import Resources

if TYPE_CHECKING:
    from clusterfn.config.job_spec import JobSpec

T = TypeVar("T")
PENDING, RUNNING, FINAL, UNKNOWN = "pending", "running", "final", "unknown"
_MOST_ALIVE_FIRST = (RUNNING, PENDING, UNKNOWN, FINAL)
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# Without these variables of the login host, a job could download nothing at some sites.
PASSED_VARIABLES = (*_PROXIES, *map(str.upper, _PROXIES), *_CERTIFICATES)


class Template(NamedTuple):
    """What the agent needs to fork a job, instead of starting its job.sh.

    Attributes:
        argv: The command by which a template for its environment starts.
        alike: What jobs must have in common to be forked from one template.
        folder: Of the job, or of the element of a group.
    """

    argv: tuple[str, ...]
    alike: str
    folder: str


class Submission(NamedTuple):
    """The agent's request that submits a job: `run` a command and read its answer, or `spawn` a process.

    Attributes:
        do: "run" or "spawn".
        unset: Prefixes of variables that the command must not inherit; what a prefix after "!" covers stays.
        log: Where a spawned process writes; "" for `run`.
        stop_at: The text on stderr by which the command says that it will try again by itself, for long and silently.
            It is killed then, and the caller tries again.
        template: Of a spawned process that may be forked from one.
    """

    do: str
    argv: tuple[str, ...]
    cwd: str
    unset: tuple[str, ...] = ()
    log: str = ""
    timeout_s: float = 60.0
    stop_at: str = ""
    template: Template | None = None


class Answer(NamedTuple):
    """What the agent answered to a submission.

    Attributes:
        rc: Exit status of a `run`; None if it was killed or ran out of time.
        pid, starttime: Of a spawned process.
    """

    rc: int | None = 0
    out: str = ""
    err: str = ""
    pid: int | None = None
    starttime: str | int | None = ""

    def without_number(self, program: str) -> str:
        """Say how a program that submits has given no number of a job."""
        if self.rc is None:
            return f"{program} did not answer in time"
        return f"{program} refused the job (status {self.rc})" if self.rc else f"{program} gave no job number"

    def may_be_submitted(self, number: re.Pattern[str], refused: re.Pattern[str], silent: re.Pattern[str]) -> bool:
        """Whether the scheduler did not answer its program, or made no sense: it may have taken the job.

        What a wrapper or a plugin of the site runs after the program may fail for reasons of its own.

        Args:
            number: Finds the job's number in what the program prints.
            refused: Finds the program's own words when it has submitted nothing.
            silent: Finds those when the scheduler did not answer it.
        """
        has_number = bool(number.search(self.out))
        if self.rc == 0:
            return not has_number
        failed_after = has_number and not refused.search(self.err)
        return self.rc is None or failed_after or bool(silent.search(self.err))


class JobState(NamedTuple):
    """What the scheduler said about one job at one look. A subclass knows what the words of its scheduler mean.

    Attributes:
        phase: PENDING, RUNNING, FINAL, or UNKNOWN for a word that this version does not know.
        state: The scheduler's own word, "PENDING".
        reason: Its own reason, "Priority"; "" for none.
        scheduler_id: Its own number, "1234" or "1234_[1-5]".
        nodes: How many nodes it asks for, where that is known.
        expected_start: When the scheduler expects to start a waiting job, by the host's clock, "2026-11-20T14:53:04";
            "" where it does not say.
    """

    phase: str
    state: str
    reason: str = ""
    scheduler_id: str = ""
    nodes: int = 1
    expected_start: str = ""

    @property
    def in_words(self) -> str:
        """Say why a job waits, and when it may start if that is known: "Priority: waiting for its turn"."""
        return self.reason or self.state.lower()

    @property
    def suspended(self) -> str:
        """Say why a job that has begun does not run now: the scheduler has stopped its processes. "" if it runs."""
        return ""

    @property
    def waits_for_jobs(self) -> bool:
        """Whether a pending job is held until others have ended."""
        return False

    def hopeless(self, host: str) -> SchedulerVerdict | None:
        """Return a verdict on a pending job that can never start, or None. Believed if two looks say the same."""
        return None


def most_alive(states: Iterable[tuple[str, JobState]]) -> dict[str, JobState]:
    """Return the states by job name; of several jobs of one name, such as elements, the one most alive counts."""
    by_name: dict[str, JobState] = {}
    order = _MOST_ALIVE_FIRST.index
    for name, state in states:
        if name not in by_name or order(state.phase) < order(by_name[name].phase):
            by_name[name] = state
    return by_name


class SchedulerLimits(NamedTuple):
    """What a scheduler allows one user; None where it does not say.

    Attributes:
        array: Elements of one job array; 0 where there are no arrays.
        jobs: Jobs and elements that may wait and run at the same time.
        time_s: Longest duration of a job.
    """

    array: int | None = None
    jobs: int | None = None
    time_s: float | None = None


class SchedulerVerdict(NamedTuple):
    """A conclusion from outside, for `supervise.py conclude`, which publishes it or finds that the job has spoken.

    Attributes:
        kind: One of `layout.KINDS`.
        stage: One of `layout.STAGES`.
        withdraw: Only if no supervisor has claimed the job; it then never will.
        most: Only for so many items that no element has; None for all.
    """

    kind: str
    message: str
    evidence: tuple[str, ...] = ()
    hint: str = ""
    stage: str = "scheduler"
    withdraw: bool = False
    most: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "evidence": list(self.evidence)}


class Evidence(NamedTuple):
    """What can be seen of a job from outside.

    Attributes:
        answer: What `evidence_command` printed, stdout then stderr, whatever its exit status; it may be empty.
        log: The end of scheduler.log.
        scheduler_id: As `submitted` gave it, or as the claim has it.
        job: The job's own id; "" if that is not known. A scheduler that has lost its state gives numbers again.
    """

    answer: str = ""
    log: str = ""
    scheduler_id: str = ""
    job: str = ""


@dataclass(frozen=True)
class Question(Generic[T]):
    """A command to run on the host, and how to read what it prints if it succeeds."""

    argv: tuple[str, ...]
    read: Callable[[str], T]


class LimitsQuestion(NamedTuple):
    """Commands that show what is allowed, each of which may fail.

    Attributes:
        read: Reads what they have printed; "" of one that failed.
    """

    commands: Sequence[tuple[str, ...]] = ()
    read: Callable[[Sequence[str]], SchedulerLimits] = lambda _: SchedulerLimits()


class NodeGpus(NamedTuple):
    """The GPUs of one type on one node.

    Attributes:
        state: The node's, "idle+drain".
        type: "" where the site names none.
        used: None where the scheduler does not say.
    """

    node: str
    state: str
    type: str
    total: int
    used: int | None


class Waiting(NamedTuple):
    """A job that wants GPUs and has not started.

    Attributes:
        wants: "gpu:a100:2".
        submitted: As the scheduler writes it, "2026-11-20T14:53:04".
    """

    id: str
    user: str
    wants: str
    submitted: str
    reason: str
    name: str


class NodeGpusQuestions(NamedTuple):
    """What can be asked about the GPUs of a scheduler's nodes.

    Attributes:
        partition: The partition or queue that clusterfn.yml names for jobs with GPUs; "" for the default.
        nodes: Which GPUs each node has, and how many of them are in use; None if it cannot say.
        queue: Which jobs wait for GPUs; as `nodes`.
        types: Which types the nodes have, "" among them where some have none; None if it cannot say.
    """

    partition: str
    nodes: Question[Sequence[NodeGpus]] | None = None
    queue: Question[Sequence[Waiting]] | None = None
    types: Question[Sequence[str]] | None = None


class Scheduler(ABC):
    """Build a scheduler's commands, read their output, and answer what other code asks about it.

    Attributes:
        title: Its name for people.
        requeues: Whether a job is started again with the same checkpoint where `requeue=` says so.
        has_nodes: Whether jobs run on compute nodes, whose cores, memory and GPUs the scheduler gives out. Else they
            run on the machine that ssh reaches, where clusterfn's own queue does so.
        unset: Prefixes of variables that none of its commands may inherit.
        knows_all: Whether a look at it lists every job from its submission on; else only those that wait.
        priority_hint: How to say there which of one's own jobs come first.
        looks_s: How often it may be asked about a waiting job: until it is so old, one look in so many seconds.
        queued_status: The wait status of a script that has left its job to clusterfn's own queue; None where none does.
        evidence_of_many: Whether `evidence_command` can show what is left of several jobs at once.
    """

    title: str
    has_nodes: bool = True
    requeues: bool = True
    unset: tuple[str, ...] = ()
    knows_all: bool = True
    priority_hint: str = ""
    queued_status: int | None = None
    evidence_of_many: bool = False
    # A controller serves all users of a site. It may state why a new job waits only some seconds after it has accepted
    # it.
    looks_s: Sequence[tuple[float, float]] = ((4.0, 4.0), (10.0, 6.0), (30.0, 20.0), (70.0, 40.0), (float("inf"), 60.0))

    def resolve_resources(self, resources: Resources) -> Resources:
        """Return what to ask this scheduler for; raise ConfigError if it cannot be asked for that."""
        return resources

    # Submission

    @abstractmethod
    def submission(self, job: JobSpec) -> Submission:
        """Return the request that submits the job, whose folder is on the host by then.

        Raises:
            ConfigError: The job's folder has a name that the scheduler would misread.
        """

    @abstractmethod
    def elements(self, job: JobSpec, numbers: range, largest: int) -> Sequence[tuple[range, Submission]]:
        """Return the requests that start these elements of a group, each with those that it starts.

        Args:
            largest: Elements of one job array; 0 where there are no arrays.
        """

    def notes(self, answer: Answer) -> Sequence[str]:
        """Return what the user should know about a submission."""
        return ()

    @abstractmethod
    def submitted(self, answer: Answer) -> str:
        """Return the scheduler's number of the job.

        Raises:
            SubmitError: With the scheduler's own words. If it is `retryable`, the job may have been submitted all the
                same: look it up by name before trying again.
            Unsatisfiable: The same, where those say that no wait will help.
        """

    def refused_for_now(self, answer: Answer) -> str:
        """Return the scheduler's own words if it has too many jobs to take this one, and may take it later; else ""."""
        return ""

    def again(self, request: Submission, answer: Answer) -> Submission | None:
        """Return what to submit instead, if the site refused only what clusterfn itself has added; else None."""
        return None

    def limits(self, gpus: int) -> LimitsQuestion:
        """Ask what is allowed for a job with so many GPUs. The commands are the same for all jobs."""
        return LimitsQuestion()

    def test_command(self, job: JobSpec) -> tuple[str, ...]:
        """Return the command that says when a job would start that is not submitted; () if it cannot say."""
        return ()

    def expected_wait_s(self, answer: Answer) -> float | None:
        """Return what `test_command` said, in seconds from now; None if it cannot say now; raise as `submitted`."""
        return None

    # One job: its state, its log, its end

    @abstractmethod
    def watch_command(self) -> tuple[str, ...]:
        """Return the command for one look at all jobs of the user; () if it cannot be asked."""

    @abstractmethod
    def parse_states(self, text: str) -> Mapping[str, JobState]:
        """Read a look, by job name (`layout.job_name`). Skips unknown lines, never raises."""

    @abstractmethod
    def trouble(self, answer: Answer) -> str:
        """Say why an answer to `watch_command` says nothing about any job; "" if it can be believed."""

    def loosen_command(self, state: JobState, time_s: float | None) -> tuple[str, ...]:
        """Return what takes back from a waiting job what clusterfn itself added, if that may keep it from starting.

        Args:
            time_s: For how long it may run, as its call asks; None if the call asks for no time.
        """
        return ()

    def element_log(self, number: int, scheduler_id: str) -> str:
        """Return the name of the log of an element of a group, by its number or by the scheduler's."""
        return layout.element_log(scheduler_id)

    def cancel_command(self, name: str, *, kill: bool = False) -> tuple[str, ...]:
        """Return the command that withdraws or ends the job of this name; () if only its own files can.

        Args:
            kill: Kill all its processes at once; () where `supervise.py end` does.
        """
        return ()

    def cancel_by_hand(self, name: str) -> str:
        """Return what a person types on the host to do the same."""
        return " ".join(self.cancel_command(name))

    def join_command(self, scheduler_id: str) -> tuple[str, ...]:
        """Return what starts a program inside a running job, on its node, connected to our stdin and stdout.

        It takes no more cores, memory or GPUs than the job has. () where there is no such way.
        """
        return ()

    @abstractmethod
    def evidence_command(self, *scheduler_ids: str) -> tuple[str, ...]:
        """Return the command that shows what is left of a job, for `explain`; of several if `evidence_of_many`."""

    @abstractmethod
    def explain(self, evidence: Evidence) -> SchedulerVerdict | None:
        """Return what ended the job; None if it may live or nothing is known. A silent heartbeat must agree."""

    def gpus(self) -> NodeGpusQuestions:
        """Ask about the GPUs of its nodes."""
        raise NotImplementedError("only a scheduler with nodes knows theirs")
