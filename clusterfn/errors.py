"""Every error that clusterfn raises.

    ClusterfnError            host, job, stage, evidence, hint, log, retryable
    ├── ConfigError           clusterfn.yml, an argument of @cluster or a name is wrong; nothing was sent
    ├── PayloadError          the call cannot be pickled, or cannot be loaded on the host
    ├── LockError             an environment could not be locked
    ├── EnvironmentBuildError the environment is missing, does not match, or could not be built
    ├── SubmitError           the scheduler rejected the job
    ├── MapError              no item of a map returned
    ├── SweepError            no configuration of a sweep succeeded
    ├── HostError             the host could not be used
    │   ├── Unreachable
    │   ├── AuthenticationError
    │   ├── HostKeyError
    │   └── HostDiskFull
    └── JobError              the job ended without a value
        ├── FunctionError     the function's own exception could not be rebuilt locally, or it called sys.exit
        ├── CommandFailed     the command that the job ran has failed
        ├── ResultError       the value cannot be pickled in the job or loaded locally, or is damaged
        │   └── ResultTooLarge
        ├── Unsatisfiable     the scheduler will never start it
        ├── DependencyFailed  a job whose value it takes has none; the cause is that job's exception
        ├── Cancelled         also a concurrent.futures.CancelledError
        └── WorkerLost        the process that ran the function is gone
            ├── ExitedEarly  KilledBySignal  OutOfMemory  TimeLimit  Stalled  Preempted  NodeFailed
            ├── DiskFull      also an OSError, as the one that the function met
            └── ActorLost

`bridge/supervisor/classify_exit.py` has the texts of most ends of a job. Other errors have theirs where they are
raised.

A function's own exception is re-raised with its own type, not as one of these. Every error pickles with all its facts.
"""

from __future__ import annotations

import concurrent.futures
import errno
import os
from collections.abc import Iterable, Sequence
from typing import Any

from clusterfn.bridge.supervisor.text import printable


class ClusterfnError(Exception):
    """What failed, where, at which stage, what was seen, and one thing to do.

    Args:
        message: One sentence: what failed.
        host: The host's name in clusterfn.yml.
        job: The job's id, if there is one.
        stage: At which stage of the job: one of `layout.STAGES`.
        evidence: Lines that show it, such as the end of the output.
        hint: One thing to do.
        log: Path of the whole log, as host:path.
        retryable: Whether the same call may succeed later unchanged.
    """

    def __init__(
        self,
        message: str,
        *,
        host: str | None = None,
        job: str | None = None,
        stage: str | None = None,
        evidence: Sequence[str] = (),
        hint: str | None = None,
        log: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.host = host
        self.job = job
        self.stage = stage
        self.evidence = tuple(evidence)
        self.hint = hint
        self.log = log
        self.retryable = retryable

    def __str__(self) -> str:
        """Return the whole text without terminal escapes: much of it comes from hosts."""
        facts = [("host", self.host), ("job", self.job), ("stage", self.stage)]
        where = ", ".join(f"{name} {value}" for name, value in facts if value)
        lines = [str(self.message)]
        lines += [f"  where: {where}"] if where else []
        lines += ["  seen:", *(f"    {line}" for line in self.evidence)] if self.evidence else []
        lines += [f"  next:  {self.hint}"] if self.hint else []
        lines += [f"  log:   {self.log}"] if self.log else []
        return printable("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.__dict__)


def _rebuild(cls: type[ClusterfnError], message: str, state: dict[str, Any]) -> ClusterfnError:
    error = cls.__new__(cls, message)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class ConfigError(ClusterfnError):
    """The configuration, an argument or a name is wrong. Nothing was sent."""


class PayloadError(ClusterfnError):
    """The call cannot be pickled locally, or its pickle cannot be loaded on the host."""


class LockError(ClusterfnError):
    """An environment's specification could not be locked."""


class EnvironmentBuildError(ClusterfnError):
    """The environment is missing, does not match the request, or could not be built."""


class SubmitError(ClusterfnError):
    """The scheduler rejected the job; `evidence` holds its own words."""


class MapError(ClusterfnError):
    """No item of a map returned; `evidence` has the most frequent causes with their counts."""


class SweepError(ClusterfnError):
    """No configuration of a sweep succeeded; `evidence` has the most frequent causes with their counts."""


class HostError(ClusterfnError):
    """The host could not be used.

    Attributes:
        kind: What went wrong, as the agent on the host reports it ("missing", "denied", "full", …); else "".
        path: The file on the host that caused the error.
    """

    kind: str = ""
    path: str = ""


class Unreachable(HostError):
    """The connection failed, or was lost and could not be restored; or the host did not answer in time."""


class AuthenticationError(HostError):
    """The host rejected the login of this user."""


class HostKeyError(HostError):
    """The host's key is unknown, or differs from the one in known_hosts."""


class HostDiskFull(HostError):
    """The host had no space, inodes or quota left before the function started."""


class JobError(ClusterfnError):
    """The job ended without a value."""


class FunctionError(JobError):
    """The function raised an exception that cannot be rebuilt locally.

    Attributes:
        type_name: The exception's module and name in the job.
        traceback: The remote traceback, as text.
    """

    type_name: str = ""
    traceback: str = ""


class CommandFailed(JobError):
    """The command that the job ran has failed; `evidence` has the last lines of its stderr.

    Attributes:
        exit_status: As a shell says it: 128 and the signal's number for one that a signal ended.
        signal: The signal, such as "SIGSEGV"; "" if it ended by itself.
    """

    exit_status: int = 1
    signal: str = ""


class ResultError(JobError):
    """The value cannot be pickled in the job or loaded locally, or is damaged. It stays on the host."""


class ResultTooLarge(ResultError):
    """The value is larger than `max_result`, and was not fetched. It stays on the host.

    Attributes:
        size_bytes: Its size.
    """

    size_bytes: int = 0


class Unsatisfiable(JobError):
    """The job asks for more than the host can ever provide."""


class DependencyFailed(JobError):
    """A job among the arguments of the call has no value, so the call never ran; `__cause__` says why it has none."""


class Cancelled(JobError, concurrent.futures.CancelledError):
    """The job was ended on request."""


class WorkerLost(JobError):
    """The process that ran the function is gone and left no result."""


class ActorLost(WorkerLost):
    """The actor is closed, or gone with its state, so the call did not run. Create it again to go on."""


class ExitedEarly(WorkerLost):
    """The process exited without returning or raising: os._exit, or a library that exits."""

    code: int | None = None


class KilledBySignal(WorkerLost):
    """A signal ended the process."""

    signal: str = ""


class OutOfMemory(WorkerLost):
    """The job used more memory than it asked for, or than the machine has."""


class TimeLimit(WorkerLost):
    """The job ran longer than it asked for."""


class Stalled(WorkerLost):
    """The job showed no sign of progress for longer than `stall_timeout`."""


class Preempted(WorkerLost):
    """The scheduler preempted the job and will not restart it."""


class NodeFailed(WorkerLost):
    """The machine that ran the job went down."""


class DiskFull(WorkerLost, OSError):
    """The host ran out of space, inodes or quota while the function ran.

    Attributes:
        errno: As of the function's own OSError: ENOSPC, or EDQUOT for a quota.
        strerror: The system's words for it.
        filename: The file that could not be written, if that error named it.
    """

    errno: int = errno.ENOSPC
    strerror: str | None = os.strerror(errno)
    filename: Any = None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a clause for a message that names the nearest known word, or nothing.

    Example:
        >>> did_you_mean("gpu", ["gpus", "cores"])
        '; did you mean gpus?'
    """
    near = nearest_word(word, known)
    return f"; did you mean {near}?" if near else ""


def nearest_word(word: str, known: Iterable[str], alike: float = 0.5) -> str | None:
    """Return the known word that resembles this one most, in letters of either case; None if none is as much alike.

    Args:
        alike: From 0.0 to 1.0, which means the same word.
    """
    # Imported late, because only a rejected word needs it, and calls must start fast.
    import difflib

    spelled = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold(), spelled, n=1, cutoff=alike)
    return spelled[near[0]] if near else None
