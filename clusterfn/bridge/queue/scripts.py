"""What the spooler starts for jobs that wait: scripts, and processes that end those that will never start.

`JobScripts` starts the scripts of jobs whose turn has come and says which are late, `EnvironmentMakers` those that make
an environment. `JobEndings` ends a job by `supervise.py conclude`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import namedtuple

from ..builder import progress
from ..layout import (
    BUILDER_LOG,
    CLAIM,
    DEPENDENCY,
    EXIT_PUBLISHED,
    EXIT_RETURNED,
    SCHEDULER_LOG,
    SCRIPT,
    TURN,
    element_log,
)
from ..supervisor.verdict import log_line
from . import launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Container, Optional

    from .tickets import Queue, Ticket

# The lines of `setup:` in a script may never end, so a job is awaited only this long.
_COMES_S = 5.0
# The turn is kept this long for a slow script.
_KEPT_S = 300.0
_AGAIN_S = 0.2
_AGAIN_MOST_S = 5.0


class JobScripts:
    """The scripts that the spooler has started.

    Attributes:
        starting: Those of jobs whose turn has come and that are not admitted yet, by job.
    """

    def __init__(self, queue: "Queue") -> None:
        self.starting: "dict[str, subprocess.Popen[Any]]" = {}
        self._queue = queue
        # Processes whose exit status has not been collected yet.
        self._uncollected: "list[subprocess.Popen[Any]]" = []
        # By job: how often its script was started, and the time before which it is not started again.
        self._tries: "dict[str, tuple[int, float]]" = {}

    def tries(self, job: str) -> int:
        """Return how often a job that still waits was tried."""
        return self._tries.get(job, (0, 0.0))[0]

    def keep_only(self, waiting: "Container[str]") -> None:
        """Forget the jobs that wait no longer."""
        tables: "tuple[dict[str, Any], ...]" = (self.starting, self._tries)
        for kept in tables:
            for job in [job for job in kept if job not in waiting]:
                del kept[job]

    def start(self, ticket: "Ticket", turn: str) -> "Optional[subprocess.Popen[Any]]":
        """Start the script of a job; None if it was tried a moment ago, or cannot be started now.

        Args:
            turn: Why it is started, for the variable `TURN`.
        """
        if not self._may_try(ticket.job):
            return None
        tries = self.tries(ticket.job)
        # The exponent is limited, because the power for a thousand tries would not fit into a float.
        rest_s = min(_AGAIN_S * (1 << min(tries, 9)), _AGAIN_MOST_S)
        self._tries[ticket.job] = (tries + 1, time.monotonic() + rest_s)
        log_path = os.path.join(ticket.home, SCHEDULER_LOG if ticket.element is None else element_log(ticket.element))
        # O_NONBLOCK: if the user has put a FIFO in place of the log, the open fails instead of waiting for a reader.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        try:
            fields = self._queue.fields(ticket.job)
            # The ticket has been removed meanwhile.
            if fields is None:
                return None
            with open(os.open(log_path, flags, 0o600), "ab") as log:
                os.set_blocking(log.fileno(), True)
                return subprocess.Popen(
                    ["/bin/sh", os.path.join(ticket.home, SCRIPT)]
                    + ([] if ticket.element is None else [str(ticket.element)]),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=ticket.home,
                    env=dict(fields["env"], **{TURN: turn}),
                    start_new_session=True,
                )
        except OSError as error:
            # The user has no process left, or the job's file system is away. Other jobs must still start.
            log_line("the script of %s could not be started: %s" % (ticket.job, error))
            return None

    def admit(self, ticket: "Ticket") -> None:
        """Start the script of a job whose turn has come."""
        process = self.start(ticket, launch.ITS_TURN)
        if process is not None:
            self.starting[ticket.job] = process
            self._uncollected.append(process)

    def leave(self, process: "subprocess.Popen[Any]") -> None:
        """Collect a process once it ends."""
        self._uncollected.append(process)

    def _may_try(self, job: str) -> bool:
        return time.monotonic() >= self._tries.get(job, (0, 0.0))[1]

    def some_rest(self) -> bool:
        """Whether one that has failed is to be tried again in a moment."""
        return not all(map(self._may_try, self._tries))

    def is_overdue(self, job: str) -> bool:
        """Return whether the script of a job whose turn has come takes so long that others go first."""
        return time.monotonic() > self._tries.get(job, (0, 0.0))[1] + _KEPT_S

    def overdue(self) -> "set[str]":
        """Return the jobs whose turn has come for which nothing is kept any more."""
        return set(filter(self.is_overdue, self.starting))

    def late(self) -> "set[str]":
        """Return the jobs that are not awaited now: their script takes long, or failed and rests."""
        now = time.monotonic()
        return {
            job
            for job, (_, not_before) in self._tries.items()
            if (now > not_before + _COMES_S if job in self.starting else now < not_before)
        }

    def collect(self) -> bool:
        """Collect what has ended; return whether a job is not admitted by then: it has lost its turn."""
        self._uncollected = [child for child in self._uncollected if child.poll() is None]
        lost = [job for job, child in self.starting.items() if child.returncode is not None]
        for job in lost:
            del self.starting[job]
        return bool(lost)


# The script of a waiting job that makes its environment. logged: how long the log of its builder was before.
EnvironmentMaker = namedtuple("EnvironmentMaker", ("ticket", "process", "logged"))


class EnvironmentMakers:
    """The scripts that make environments, started by `scripts`."""

    def __init__(self, scripts: "JobScripts") -> None:
        self._scripts = scripts
        self._makers: "dict[str, EnvironmentMaker]" = {}

    def jobs(self) -> "set[str]":
        """Return the jobs whose scripts they are."""
        return set(self._makers)

    def collect(self) -> None:
        """Forget those that have ended."""
        for job, maker in list(self._makers.items()):
            if maker.process.poll() is not None:
                del self._makers[job]

    def make(self, waiting: "list[Ticket]") -> "dict[str, str]":
        """Have the environments made that these jobs wait for; return how far each job's environment is.

        Nothing is reserved for these jobs meanwhile.
        """
        building = self._building({ticket.needs for ticket in waiting})
        reasons = {}
        # The setup of the job that was tried before may hang.
        for ticket in sorted(waiting, key=lambda ticket: self._scripts.tries(ticket.job)):
            if ticket.needs not in building:
                logged = _size_of(_log_of(ticket))
                process = self._scripts.start(ticket, launch.ENVIRONMENT)
                if process is not None:
                    self._makers[ticket.job] = EnvironmentMaker(ticket, process, logged)
                    building[ticket.needs] = ticket
            state = progress.in_words(progress.last_line(_log_of(building.get(ticket.needs, ticket))))
            reasons[ticket.job] = "environment: " + (state or "waiting for its builder")
        return reasons

    def _building(self, needed: "set[tuple[str, ...]]") -> "dict[tuple[str, ...], Ticket]":
        """Return whose script makes each environment; end those that come to no builder."""
        building: "dict[tuple[str, ...], Ticket]" = {}
        for job, maker in list(self._makers.items()):
            needs = maker.ticket.needs
            builds = _size_of(_log_of(maker.ticket)) > maker.logged
            # The job was withdrawn while its setup ran, or another script has made the environment meanwhile.
            is_useless = not self._scripts.tries(job) or needs not in needed
            if builds or not (is_useless or self._scripts.is_overdue(job)):
                building[needs] = maker.ticket
                continue
            # The process was not reaped before, so no other process can have its number.
            if maker.process.poll() is None:
                os.killpg(maker.process.pid, signal.SIGKILL)
            self._scripts.leave(self._makers.pop(job).process)
        return building


def _log_of(ticket: "Ticket") -> str:
    return os.path.join(ticket.folder, BUILDER_LOG)


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        # The file does not exist yet.
        return 0


# Each process that follows one that was killed has twice as long as that, up to a quarter of an hour.
_CONCLUDES_S = 30.0
_CONCLUDES_MOST_S = 1000.0
# A failed job may have hundreds of others that wait for its value; only so many processes publish their ends at once.
_AT_ONCE = 8
_END_AGAIN_S = 5.0


class JobEndings:
    """The ends that are being published, each by a process of its own, `supervise.py conclude`.

    It does nothing if the job has begun, and is not awaited: files in the job's folder may keep it for ever.

    Args:
        queue: Its tickets.

    Attributes:
        jobs: Their jobs: the process, when it is killed, how long the next one may take, and the verdict.
    """

    def __init__(self, queue: "Queue") -> None:
        self.jobs: "dict[str, tuple[subprocess.Popen[Any], float, float, dict[str, Any]]]" = {}
        self._queue = queue
        self._not_before: "dict[str, float]" = {}

    def may_end(self, job: str) -> bool:
        """Whether its end was not refused a moment ago."""
        return time.monotonic() >= self._not_before.get(job, 0.0)

    def end(self, job: str, folder: str, verdict: "dict[str, Any]") -> None:
        """Publish the end of a job; not now if too many are being published that nothing has held up so far."""
        now = time.monotonic()
        if sum(now < until and next_s == 2 * _CONCLUDES_S for _, until, next_s, _ in self.jobs.values()) < _AT_ONCE:
            self._conclude(job, folder, verdict, _CONCLUDES_S)

    def _conclude(self, job: str, folder: str, verdict: "dict[str, Any]", limit_s: float) -> None:
        # This import costs as much as all the rest, and few jobs end here.
        import tempfile

        argv = [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0]), "conclude", folder]
        try:
            with open(os.devnull, "wb") as null, tempfile.TemporaryFile() as verdict_file:
                verdict_file.write(json.dumps(dict(verdict, withdraw=True)).encode())
                verdict_file.seek(0)
                process = subprocess.Popen(argv, stdin=verdict_file, stdout=null, cwd="/", start_new_session=True)
        except OSError as error:
            # The machine has no process or disk space left. A later turn of the spooler retries.
            self._not_before[job] = time.monotonic() + _END_AGAIN_S
            log_line("the end of %s could not be published now: %s" % (job, error))
            return
        self.jobs[job] = process, time.monotonic() + limit_s, 2 * limit_s, verdict

    def collect(self) -> None:
        """Take note of the ends that are published; kill a process that takes too long, and start another one."""
        for job, (process, until, next_s, verdict) in list(self.jobs.items()):
            if process.poll() is None and time.monotonic() >= until:
                process.kill()
            if process.returncode is None or not self.may_end(job):
                continue
            folder = self._queue.folder_of(job)
            if time.monotonic() >= until and process.returncode < 0 and next_s < _CONCLUDES_MOST_S:
                # A slow disk delays this spooler as well. The job may be claimed by now, and lack nothing but its end.
                self._conclude(job, folder, verdict, next_s)
                continue
            del self.jobs[job]
            if process.returncode not in (EXIT_RETURNED, EXIT_PUBLISHED):
                log_line("the end of %s could not be published: look at %s" % (job, folder))
            if verdict["kind"] != DEPENDENCY or os.path.exists(os.path.join(folder, CLAIM)):
                self._queue.withdraw(job)
            else:
                # Its input may have a value after all, or the disk may be full. The job's own supervisor finds out.
                self._not_before[job] = time.monotonic() + _END_AGAIN_S
