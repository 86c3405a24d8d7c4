"""A runner that has an actor: one process, forked ahead as each call's is, runs all calls of the actor and stays.

Each of these calls is judged and published as any call of a session is. Where one ends the process, the actor is gone:
the server fails what was to follow, and the runner is as before.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..layout import DISK_ERRORS, RETURNED, WORK
from ..schedulers.registry import given_gpus
from ..supervisor import gpus, process_tree
from ..supervisor.classify_exit import describe_exit
from ..supervisor.limits import clock
from ..supervisor.run import run_through
from .call import RESTARTED, CallAttempt, CallJob, CallRun, CallWatch, is_withdrawn, prepare_run, take_call

if TYPE_CHECKING:
    from ..agent.frames import Header
    from ..supervisor.spec import Spec
    from ..supervisor.watch import Signals
    from .call_process import Ahead, CallProcess
    from .connections import ServerLink

CREATE_AGAIN = "create the actor again with session.actor(…): its state is gone with its process"
_TICK_MS = 100
# A thread that never stops printing must not keep a call from its start.
_PIECE = 65536
_MOST_PIECES = 16


class ActorCallRun(CallRun):
    """The run of one call of an actor, in a process that was there before it and is there after it."""

    # What a method leaves running stays as long as the actor.
    ends_processes = False

    def __init__(
        self, job: CallJob, attempt: CallAttempt, watch: CallWatch, kept: KeptProcess, is_live: bool, facts: Header
    ) -> None:
        kept.pass_on()
        super().__init__(job, attempt, watch, kept.ahead, lambda: kept.give(job.folder, attempt.folder, facts), is_live)
        self._kept = kept

    def start(self) -> None:
        self._gpus = gpus.GpuUsageMonitor(self._kept.gpus, self.notes)
        self._started = clock.now()
        self._attach(self._give())
        # The process reports only how the call ended, because each line would wake this process.
        self.stage = "function"
        self.attempt.event("running", stage="function")

    @property
    def has_reported(self) -> bool:
        return self._done is not None

    def close(self) -> None:
        """Close its files, and leave the pipes to the next call."""
        os.close(self._value)
        if self.processes.worker is not None:
            self.processes.worker.out, self.processes.worker.err = (pump.fd for pump in self.pumps)
        for pump in self.pumps:
            pump.fd = -1
            pump.forget()


class KeptProcess:
    """The actor as its runner has it; gives calls to its process.

    Args:
        folder: Of the session's calls.
        first: The order of the call that constructs it.
        ahead: What was made for a call, of which the first has the process.
        signals: That wake this process when a child ends.

    Attributes:
        gone: Why it is gone; "" if it is not.
        closes: Whether the last call that was given closes it.
        gpus: Those whose use is measured.
        process: Its process; None before the first call is given to it.
    """

    def __init__(self, folder: str, spec: Spec, first: Header, ahead: Ahead, signals: Signals) -> None:
        self.gone = ""
        self.closes = False
        self.first = first
        self.signals = signals
        self.process: CallProcess | None = None
        self._folder = folder
        self.ahead = ahead
        self._job = CallJob(os.path.join(folder, str(first["n"])), spec)
        self.gpus = gpus.monitored_gpus(None, spec["resources"]["gpus"], given_gpus(os.environ))
        self._grace_s: float = spec["grace_s"]
        self._has_exited = False

    def give(self, folder: str, attempt: str, facts: Mapping[str, Any]) -> CallProcess:
        """Give a call to its process. If that has just died, the call finds out."""
        self.closes = bool(facts.get("closes"))
        if self.process is None:
            self.process = self.ahead.give(folder, attempt, facts)
        else:
            self.process.give(folder, attempt, facts)
        return self.process

    def job(self, number: int) -> CallJob:
        return self._job.of(os.path.join(self._folder, str(number)))

    def reap(self) -> None:
        """Collect what has ended; take note if the actor has."""
        for pid, status, _ in process_tree.collected():
            if self.process is not None and pid == self.process.pid:
                self.lose("its process %s between two calls" % describe_exit(status))

    def lose(self, reason: str) -> None:
        self._has_exited = True
        self.gone = self.gone or reason

    def outputs(self) -> list[int]:
        """Return the pipes of what its process prints."""
        return [fd for fd in (self.process.out, self.process.err) if fd >= 0] if self.process is not None else []

    def pass_on(self) -> None:
        """Add what the process has printed between two calls to the session's own output: it is no call's."""
        for name, target in (("out", 1), ("err", 2)):
            for _ in range(_MOST_PIECES):
                fd: int = getattr(self.process, name, -1)
                try:
                    data = os.read(fd, _PIECE) if fd >= 0 else b""
                except BlockingIOError:
                    break
                if not data:
                    if fd >= 0:
                        os.close(fd)
                        setattr(self.process, name, -1)
                    break
                while data:
                    data = data[os.write(target, data) :]

    def end(self) -> None:
        """Let the process run its exit functions, then end it, with all that it has started."""
        if self.process is None:
            return
        self.process.give_no_more()
        until = time.monotonic() + self._grace_s
        while not self._has_exited and time.monotonic() < until:
            poll = select.poll()
            for fd in (*self.outputs(), self.signals.fd):
                poll.register(fd, select.POLLIN)
            poll.poll(_TICK_MS)
            self.signals.swallow()
            self.pass_on()
            self.reap()
        process_tree.end(process_tree.of_job, self.reap)
        self.pass_on()
        self.process.close()


def keep_actor(link: ServerLink, kept: KeptProcess) -> bool:
    """Run the calls of an actor, as long as it is there; False once the server has closed the session.

    Args:
        kept: The actor, which is not constructed yet.
    """
    order: Header | None = kept.first
    while order is not None:
        _run(link, kept, order)
        order = _next(link, kept)
    is_lost = bool(kept.gone)
    kept.end()
    if is_lost:
        link.send(what="gone", reason=kept.gone)
    return is_lost


def _next(link: ServerLink, kept: KeptProcess) -> Header | None:
    """Wait for the next call; None if there is none to come."""
    # While a call ran, the signal of its end may have been taken for another.
    kept.reap()
    while not (kept.gone or link.waiting):
        poll = select.poll()
        for fd in (link.fileno(), kept.signals.fd, *kept.outputs()):
            poll.register(fd, select.POLLIN)
        if any(fd == link.fileno() for fd, _ in poll.poll()) and not link.read():
            return None
        kept.signals.swallow()
        kept.reap()
        kept.pass_on()
    return None if kept.gone else link.waiting.popleft()


def _run(link: ServerLink, kept: KeptProcess, order: Header) -> None:
    number = order["n"]
    is_first = order is kept.first
    job = kept.job(number)
    ran = False
    why_not = "it was not constructed"
    try:
        attempt = CallAttempt(job, link.reporter(number), WORK if is_first else "")
        if take_call(attempt, job.folder):
            watch = CallWatch(job, attempt, kept.signals)
            work = prepare_run(
                attempt, kept.ahead, lambda: ActorCallRun(job, attempt, watch, kept, order["live"], order["facts"])
            )
            ran = work is not None
            if work is not None:
                _run_through(kept, attempt, work, is_first)
        elif not is_withdrawn(job.folder):
            why_not = RESTARTED
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        # Not even that can be written: the server says so. The actor keeps its state, unless its client has none then.
        if is_first:
            kept.gone = kept.gone or "its construction could not be recorded"
    if not ran and is_first:
        kept.gone = why_not
    elif not ran and order["facts"].get("closes"):
        # The client relies on the actor being closed.
        kept.gone = "it was closed"
    link.send(what="next", n=number, ran=ran)


def _run_through(kept: KeptProcess, attempt: CallAttempt, work: ActorCallRun, is_first: bool) -> None:
    verdict, alive = run_through(work)
    exit_status = work.processes.status
    if not (alive and work.has_reported):
        attempt.actor_gone = kept.gone = verdict.message
        verdict = verdict.replace(hint="; ".join(filter(None, [verdict.hint, CREATE_AGAIN])))
    elif kept.closes:
        kept.gone = "it was closed"
    elif is_first and verdict.kind != RETURNED:
        kept.gone = "it could not be constructed"
    elif exit_status is not None:
        attempt.actor_gone = kept.gone = "its process %s after a call" % describe_exit(exit_status)
    if exit_status is not None or not alive:
        kept.lose(kept.gone)
    try:
        if verdict.kind is not None:
            work.publish(verdict)
    finally:
        work.release()
        work.close()
