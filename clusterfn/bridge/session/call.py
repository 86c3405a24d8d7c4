"""One call of a session: a process is forked for it, and the same `AttemptRun` as a job's runs and publishes it.

It is laid out in `calls/<n>` as a job's only attempt is. Limits of memory and time are the session's own, whose
supervisor watches them. No process of the call is left behind: GPUs and memory are the next call's.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from ..layout import ATTEMPTS, CALL, CANCEL, CANCELLED, EVENTS, FAILED_RANK, HOST_DISK, LOST, OUTCOME, TAKEN, WORK
from ..schedulers import given_gpus
from ..schedulers.base import BareOnHost
from ..supervisor import publish
from ..supervisor.gpus import GpuUsageMonitor, monitored_gpus
from ..supervisor.job import JobFolder
from ..supervisor.limits import peak_of
from ..supervisor.run import AttemptRun, run_through
from ..supervisor.text import portable
from ..supervisor.verdict import Verdict, document
from ..supervisor.watch import EndWatch, Signals
from ..supervisor.worker_process import WorkerProcess
from ..worker import children, execute, payload
from ..worker.report import Report
from . import preload

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOM = "make room there, or point root: to another file system"
_KIB = 1024  # what wait4 counts in


class CallJob(JobFolder):
    """A call as a job: its folder, and the session's spec without the limits that are the session's own."""

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        resources = {**spec["resources"], "memory_bytes": None, "time_s": None}
        super().__init__(folder, {**spec, "resources": resources, "stall_s": None, "quiet_s": None})
        self.spec = {**self.spec, "resources": resources}  # without an administrator's defaults: the session has them
        self.scheduler = BareOnHost(self.scheduler.node_name())  # the scheduler knows the session alone
        self._of_session: int | None = spec["resources"]["memory_bytes"]

    @property
    def asked_memory(self) -> int | None:
        """The session's: its calls ask for none."""
        return self._of_session

    def secrets(self) -> dict[str, str]:
        """Return those of the session, which are in its environment."""
        return {name: os.environ[name] for name in self.spec["secrets"] if name in os.environ}


class CallAttempt:
    """The call's only attempt, as `AttemptRun` needs it."""

    number = 1

    def __init__(self, job: CallJob) -> None:
        self.folder = os.path.join(job.folder, ATTEMPTS, "1")
        self._job = job
        self._events = 0
        self._reserve: publish.Reserve | None = None
        os.makedirs(self.path(WORK), mode=0o700, exist_ok=True)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def prepare(self) -> None:
        """Reserve the space on the disk that its outcome needs."""
        self._reserve = publish.Reserve(self.folder)

    def call(self) -> list[str]:
        return []

    def variables(self) -> dict[str, str]:
        """Return nothing: a call has the environment of its session."""
        return {}

    def wait(self, reason: str) -> None:
        """Do nothing: a session waits for its environment before any call."""

    def begin(self) -> bool:
        return True

    def beat(self) -> None:
        """Do nothing: the session has a heartbeat."""

    def event(self, name: str, **facts: Any) -> None:
        self._events += 1
        line = {**portable(facts), "n": self._events, "event": name, "t": round(time.time(), 3)}
        try:
            with open(self.path(EVENTS), "a", encoding="utf-8", opener=_privately) as file:
                file.write(json.dumps(line) + "\n")
        except OSError:  # full: events are news, not the record
            return

    def publish(self, kind: str, facts: dict[str, Any]) -> bool:
        """Publish the outcome, unless there is one."""
        outcome = document(self._job.id, 1, kind, portable(facts))
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        return publish.publish(self.folder, OUTCOME, (json.dumps(outcome) + "\n").encode(), self._reserve)

    def publish_without_run(self, verdict: Verdict) -> None:
        """Publish how a call ended that no process was started for."""
        facts = {"stage": "start", **verdict.facts, "node": self._job.node, "by": "supervisor"}
        self.publish(verdict.kind or LOST, facts)


def _privately(path: str, flags: int) -> int:
    """Keep the umask out of it: that is the user's own, and this process is the parent of the function's."""
    return os.open(path, flags, 0o600)


class CallWatch(EndWatch):
    """What may end a call from outside: the request of its caller."""

    def cancelled(self) -> Verdict:
        return Verdict(CANCELLED, "the call was stopped on request")


class CallRun(AttemptRun):
    """The run of one call: its process is forked, with the modules that earlier calls needed, and not started by exec.

    Attributes:
        loaded: Top-level modules that it loaded.
    """

    def __init__(self, job: CallJob, attempt: CallAttempt, watch: CallWatch) -> None:
        super().__init__(job, attempt, watch)
        self.loaded: list[str] = []
        self._peak = 0

    def start(self) -> None:
        spec = self.job.spec
        self.attempt.event("starting", node=self.job.node, pid=os.getpid())
        with open(self.job.path(CALL), encoding="utf-8") as file:
            spec["sys_path"] = json.load(file)["sys_path"]
        gpus: int = spec["resources"]["gpus"]
        self._gpus = GpuUsageMonitor(monitored_gpus(None, gpus, given_gpus(os.environ)), self.notes)
        self._started = time.monotonic()
        self._attach(fork_call(self.job.folder, self.attempt.folder, spec))

    def _take_line(self, said: dict[str, Any]) -> None:
        super()._take_line(said)
        if "loaded" in said:
            self.loaded, self._peak = said["loaded"], said["peak"]

    def _usage(self, living: list[int]) -> dict[str, Any]:
        """As a job's. Only its own process can report its peak while it exits: without an exec, wait4 does not."""
        usage = super()._usage(living)
        if self._ended is not None:
            usage["peak_memory_bytes"] = max(self._sampler.peak, self._ended.ru_maxrss * _KIB)
        elif self._peak:
            usage["peak_memory_bytes"] = max(self._sampler.peak, self._peak)
        return usage

    def _daemons(self) -> list[str]:
        return []  # what a call leaves behind is ended without a word

    def _facts(self, verdict: Verdict) -> dict[str, Any]:
        return {**super()._facts(verdict), "left": None}

    def finish(self) -> None:
        """Give its threads and exit functions their time, then end what is left."""
        self._await_exit()
        self.end_tree()


def fork_call(folder: str, attempt: str, spec: dict[str, Any]) -> WorkerProcess:
    """Fork the process of a call, which runs it as a worker does.

    Args:
        folder: The call's, with its payload.
        attempt: With what it prints, its value and its outcome.
        spec: The session's, with the folders of this call's modules.
    """
    pipes = [os.pipe() for _ in range(3)]
    pid = os.fork()
    if pid == 0:
        _live(folder, attempt, spec, pipes)
    for reading, writing in pipes:
        os.close(writing)
        os.set_blocking(reading, False)
    return WorkerProcess(pid, *(reading for reading, _ in pipes))


def _live(folder: str, attempt: str, spec: dict[str, Any], pipes: list[tuple[int, int]]) -> NoReturn:
    """Run the call, and end this process. Its pipes are for stdout, stderr and the report."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        (out, printing), (err, complaining), (heard, writing) = pipes
        for fd in (out, err, heard):
            os.close(fd)
        report = Report(writing)
        children.report_own_signals(report.say)
        os.environ[payload.FAILED] = os.path.join(attempt, FAILED_RANK)
        known = list(sys.modules)
        for fd, pipe in ((1, printing), (2, complaining)):
            os.dup2(pipe, fd)
            os.close(pipe)
        asked: str | None = spec["cwd"]
        os.chdir(os.path.expanduser(os.path.expandvars(asked)) if asked else os.path.join(attempt, WORK))
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # torch starts from the same seed in every process, forked or not
        value = execute.open_value_file(attempt)
        try:
            facts = execute.run_call(folder, spec, [], report, value)
        except execute.CallRejected as rejected:
            facts = rejected.facts
        report.say(loaded=preload.imported_since(known), peak=peak_of(os.getpid()))
        execute.report_outcome(report, facts)
        status = 0
        # What an interpreter does at its end, which a forked process must not reach by unwinding its parent's frames.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        os._exit(status)


def take_call(attempt: CallAttempt, folder: str) -> bool:
    """Take a call to run it. False if it was withdrawn, or an earlier start of the session had it: publish that."""
    try:
        os.mkdir(os.path.join(folder, TAKEN), 0o700)
        if os.path.exists(os.path.join(folder, CALL)):
            return True
    except FileExistsError:
        pass
    try:
        if os.path.exists(os.path.join(folder, CANCEL)):
            attempt.publish_without_run(Verdict(CANCELLED, "the call was withdrawn before it started", stage="queue"))
        elif publish.read(attempt.folder, OUTCOME) is None:
            attempt.publish_without_run(
                Verdict(LOST, "the session was restarted while the call ran", hint="call again")
            )
    except OSError as error:
        if error.errno not in _FULL:  # else it can wait: the client knows, or learns it at the session's end
            raise
    return False


def serve_call(folder: str, spec: dict[str, Any], signals: Signals) -> list[str] | None:
    """Run one call to its published end; the top-level modules that it loaded, None if it was not to be run.

    Args:
        folder: `calls/<n>`.
        spec: The session's.
        signals: That wake this process when a child ends.
    """
    job = CallJob(folder, spec)
    attempt = CallAttempt(job)
    if not take_call(attempt, folder):
        return None
    try:
        attempt.prepare()
    except OSError as error:
        if error.errno not in _FULL:
            raise
        attempt.publish_without_run(Verdict(HOST_DISK, "the disk of the host is full", hint=_ROOM))
        return []
    work = CallRun(job, attempt, CallWatch(job, attempt, signals))
    verdict, alive = run_through(work)
    if verdict.kind is not None:
        work.publish(verdict)
    if alive:
        work.finish()
    work.release()
    work.close()
    return work.loaded
