"""The seam to schedulers: builders of argv and readers of text.

Implementations (`slurm`, `bare`) are pure: no I/O, no clock, no state, so that a test needs no cluster. `dispatch`
sends what they build through the agent, `watch` asks what `watch_command` says, `SchedulerVerdict`s go to `supervise.py
conclude` on the host. Nothing here raises about a job: a conclusion counts only once the host has published it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from clusterfn.config.spec import JobSpec

PENDING, RUNNING, FINAL, UNKNOWN = "pending", "running", "final", "unknown"


@dataclass(frozen=True)
class Submission:
    """The agent's request that submits a job: `run` a command and read its answer, or `spawn` a process.

    Attributes:
        do: "run" or "spawn".
        unset: Prefixes of variables that the command must not inherit.
        log: Where a spawned process writes; "" for `run`.
    """

    do: str
    argv: tuple[str, ...]
    cwd: str
    unset: tuple[str, ...] = ()
    log: str = ""
    timeout_s: float = 60.0

    def request(self) -> dict[str, Any]:
        """The request's header, as the wire wants it."""
        common = {"do": self.do, "argv": list(self.argv), "cwd": self.cwd, "unset": list(self.unset)}
        return {**common, "log": self.log} if self.do == "spawn" else {**common, "timeout_s": self.timeout_s}


@dataclass(frozen=True)
class Answer:
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


@dataclass(frozen=True)
class JobState:
    """What the scheduler said about one job at one look.

    Attributes:
        phase: PENDING, RUNNING, FINAL, or UNKNOWN for a word that this version does not know.
        state: The scheduler's own word, "PENDING".
        reason: Its own reason, "Priority"; "" for none.
        scheduler_id: Its own number, "1234" or "1234_[1-5]".
        nodes: How many nodes it asks for, where that is told.
    """

    phase: str
    state: str
    reason: str = ""
    scheduler_id: str = ""
    nodes: int = 1


@dataclass(frozen=True)
class SchedulerLimits:
    """What a scheduler allows one user; None where it does not say.

    Attributes:
        array: Elements of one job array.
        jobs: Jobs and elements that may wait and run at the same time.
        time_s: Longest duration of a job.
    """

    array: int | None = None
    jobs: int | None = None
    time_s: float | None = None


@dataclass(frozen=True)
class SchedulerVerdict:
    """A conclusion from outside, for `supervise.py conclude`, which publishes it or finds that the job has spoken.

    Attributes:
        kind: One of `layout.KINDS`.
        stage: One of `layout.STAGES`.
        withdraw: Only if no supervisor has claimed the job; it then never will.
    """

    kind: str
    message: str
    evidence: tuple[str, ...] = ()
    hint: str = ""
    stage: str = "scheduler"
    withdraw: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self.__dict__, "evidence": list(self.evidence)}


@dataclass(frozen=True)
class Evidence:
    """What can be seen of a job from outside.

    Attributes:
        answer: What `evidence_command` printed, stdout then stderr, whatever its exit status; it may be empty.
        log: The end of scheduler.log.
        scheduler_id: As `submitted` gave it, or as the claim has it.
    """

    answer: str = ""
    log: str = ""
    scheduler_id: str = ""


class Scheduler(Protocol):
    """Builds commands and reads their output. Implementations: Slurm, Bare."""

    @property
    def unset(self) -> tuple[str, ...]:
        """Prefixes of variables that none of these commands may inherit."""

    @property
    def knows_all(self) -> bool:
        """Whether a look at it tells of every job from its submission on; else of those alone that wait in a queue."""

    @property
    def looks_s(self) -> Sequence[tuple[float, float]]:
        """How often it may be asked of a job that waits: until it is so old, one look in so many seconds."""

    def waits(self, status: int | None) -> bool:
        """Whether a script that ended with this wait status has left its job to the queue."""

    def submission(self, job: JobSpec) -> Submission:
        """The request that submits the job, whose folder lies on the host by then.

        Raises: ConfigError if the job's folder has a name that the scheduler would misread."""

    def elements(self, job: JobSpec, numbers: range, largest: int) -> Sequence[tuple[range, Submission]]:
        """The requests that start these elements of a group, each with those that it starts.

        Args:
            largest: Elements of one job array."""

    def limits_commands(self) -> Sequence[tuple[str, ...]]:
        """What to run to learn what is allowed; each may fail."""

    def limits(self, told: Sequence[str], gpus: int) -> SchedulerLimits:
        """What these commands printed means for a job with so many cards."""

    def errand(self, line: str, name: str, log: str, partition: str) -> Submission:
        """The request that runs one line of shell as a small batch job of its own, which needs no card."""

    def submitted(self, answer: Answer) -> str:
        """The scheduler's number of the job.

        Raises: SubmitError with the scheduler's own words."""

    def ambiguous(self, answer: Answer) -> bool:
        """Whether the job may have been submitted all the same: look it up by name before trying again."""

    def watch_command(self) -> tuple[str, ...]:
        """One look at all jobs of the user; () if it cannot be asked."""

    def parse_states(self, text: str) -> Mapping[str, JobState]:
        """By job name (`layout.job_name`). Unknown lines are passed over; never raises."""

    def trouble(self, answer: Answer) -> str:
        """Why an answer to `watch_command` says nothing about any job; "" if it can be believed."""

    def cancel_command(self, name: str) -> tuple[str, ...]:
        """Withdraws or ends the job of this name; () if only its own files can."""

    def evidence_command(self, scheduler_id: str) -> tuple[str, ...]:
        """Shows what is left of a job, for `explain`."""

    def explain(self, evidence: Evidence) -> SchedulerVerdict | None:
        """What ended the job; None if it may live or nothing is known. A silent heartbeat must bear witness too."""

    def hopeless(self, state: JobState) -> SchedulerVerdict | None:
        """A verdict on a pending job that can never start, or None. To be believed if two looks say the same."""

    def in_words(self, state: JobState) -> str:
        """Why it waits, for people: "waiting for its turn"."""
