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

from ..layout import HOST_DISK, RETURNED
from ..schedulers import given_gpus
from ..supervisor import gpus, process_tree
from ..supervisor.classify_exit import describe_exit
from ..supervisor.run import run_through
from ..supervisor.verdict import Verdict
from .call import FULL, FULL_DISK, RESTARTED, ROOM, CallAttempt, CallJob, CallRun, CallWatch, is_withdrawn, take_call
from .link import Voice

if TYPE_CHECKING:
    from ..agent.frames import Header
    from ..supervisor.spec import Spec
    from ..supervisor.watch import Signals
    from .ahead import Ahead
    from .link import ServerLink
    from .spare import SpareProcess

CREATE_AGAIN = "create the actor again with session.actor(…): its state is gone with its process"
_TICK_MS = 100
_PIECE, _MOST_PIECES = 65536, 16  # a thread that never stops printing keeps no call from its start


class ActorAttempt(CallAttempt):
    """A call of an actor."""

    def __init__(self, job: CallJob, say: Voice, is_first: bool) -> None:
        super().__init__(job, say, *([] if is_first else [""]))


class ActorCallRun(CallRun):
    """The run of one call of an actor, in a process that was there before it and is there after it."""

    def __init__(
        self, job: CallJob, attempt: ActorAttempt, watch: CallWatch, kept: KeptProcess, is_live: bool,
        facts: Header,
    ) -> None:  # fmt: skip
        super().__init__(job, attempt, watch, kept.ahead, lambda: kept.give(job.folder, attempt.folder, facts), is_live)
        self._kept = kept

    def start(self) -> None:
        self._gpus = gpus.GpuUsageMonitor(self._kept.gpus, self.notes)
        self._started = time.monotonic()
        self._attach(self._give())
        self.stage = "function"  # the process says only how the call ended: each word would wake this one
        self.attempt.event("running", stage="function")

    @property
    def exit_status(self) -> int | None:
        """How the process has ended, from wait; None if it has not."""
        return self.processes.status

    @property
    def has_reported(self) -> bool:
        """Whether the process has said how the call ended."""
        return self._done is not None

    def _usage(self, living: list[int]) -> dict[str, Any]:
        """As a call's; memory is the most that the actor has ever had."""
        said = (self._done or {}).get("usage") or {}
        return {
            "wall_s": round(time.monotonic() - self._started, 3),
            "cpu_s": said.get("cpu_s", round(self.processes.cpu_s_with(living), 3)),
            "peak_memory_bytes": max(self._sampler.peak, said.get("peak", 0)),
            "gpus": self._gpus.usage(),
        }

    def close(self) -> None:
        """Close its files, and leave the pipes to the next call."""
        os.close(self._value)
        if self.processes.worker is not None:
            self.processes.worker.out, self.processes.worker.err = (pump.fd for pump in self.output.pumps)
        for pump in self.output.pumps:
            pump.fd = -1
        self.output.forget()


class KeptProcess:
    """The actor as its runner has it; gives calls to its process.

    Args:
        folder: Of the session's calls.
        spec: The session's.
        first: The order of the call that constructs it.
        ahead: What was made for a call, of which the first has the process.
        signals: That wake this process when a child ends.

    Attributes:
        gone: Why it is gone; "" if it is not.
        closes: Whether the last call that was given closes it.
        gpus: Those whose use is measured.
        process: Its process; None before the first call is given to it.
    """

    def __init__(
        self, folder: str, spec: Spec, first: Header, ahead: Ahead, signals: Signals
    ) -> None:  # fmt: skip
        self.gone = ""
        self.closes = False
        self.first = first
        self.signals = signals
        self.process: SpareProcess | None = None
        self._folder = folder
        self.ahead = ahead
        self._job = CallJob(os.path.join(folder, str(first["n"])), spec)
        self.gpus = gpus.monitored_gpus(None, spec["resources"]["gpus"], given_gpus(os.environ))
        self._grace_s: float = spec["grace_s"]
        self._has_exited = False

    def give(self, folder: str, attempt: str, facts: Mapping[str, Any]) -> SpareProcess:
        """Give a call to its process. If that has just died, the call finds out."""
        self.closes = bool(facts.get("closes"))
        if self.process is None:
            self.process = self.ahead.give(folder, attempt, facts)
            self.ahead.dismiss_spares()  # for as long as the actor is there, nothing needs them
        else:
            self.process.give(folder, attempt, facts)
        return self.process

    def job(self, number: int) -> CallJob:
        """Return the job of a call."""
        return self._job.of(os.path.join(self._folder, str(number)))

    def reap(self) -> None:
        """Collect what has ended; take note if the actor has."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if not process_tree.was_apart(pid) and self.process is not None and pid == self.process.pid:
                self.lose("its process %s between two calls" % describe_exit(status))

    def lose(self, reason: str) -> None:
        """Take note that its process has ended."""
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
        link: The way to the server.
        kept: The actor, which is not constructed yet.
    """
    order: Header | None = kept.first
    while order is not None:
        _run(link, kept, order)
        order = _next(link, kept)
    is_lost = bool(kept.gone)
    kept.end()
    if is_lost:
        link.say(what="gone", reason=kept.gone)
    return is_lost


def _next(link: ServerLink, kept: KeptProcess) -> Header | None:
    """Wait for the next call; None if there is none to come."""
    kept.reap()  # while a call ran, its signal may have been taken for another
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
    number, is_first = order["n"], order is kept.first
    job, voice = kept.job(number), Voice(link, number, is_followed=True)
    ran, why_not = False, "it was not constructed"
    try:
        attempt = ActorAttempt(job, voice, is_first)
        if take_call(attempt, job.folder):
            try:
                attempt.reserve = kept.ahead.reserve()
                kept.pass_on()
                watch = CallWatch(job, attempt, kept.signals)
                work = ActorCallRun(job, attempt, watch, kept, order["live"], order["facts"])
            except OSError as error:
                if error.errno not in FULL:
                    raise
                attempt.publish_without_run(Verdict(HOST_DISK, FULL_DISK, hint=ROOM))
            else:
                ran = True
                _run_through(kept, attempt, work, is_first)
        elif not is_withdrawn(job.folder):
            why_not = RESTARTED
    except OSError as error:
        if error.errno not in FULL:
            raise
        # Not even that can be written: the server says so. The actor keeps its state, unless its client has none then.
        if is_first:
            kept.gone = kept.gone or "its construction could not be recorded"
    if not ran and is_first:
        kept.gone = why_not
    elif not ran and order["facts"].get("closes"):  # its client counts on that
        kept.gone = "it was closed"
    link.say(what="next", n=number, ran=ran)


def _run_through(kept: KeptProcess, attempt: ActorAttempt, work: ActorCallRun, is_first: bool) -> None:
    verdict, alive = run_through(work)
    if not (alive and work.has_reported):
        attempt.actor_gone = kept.gone = verdict.message
        verdict = verdict.replace(hint="; ".join(filter(None, [verdict.hint, CREATE_AGAIN])))
    elif kept.closes:
        kept.gone = "it was closed"
    elif is_first and verdict.kind != RETURNED:
        kept.gone = "it could not be constructed"
    elif work.exit_status is not None:
        attempt.actor_gone = kept.gone = "its process %s after a call" % describe_exit(work.exit_status)
    if verdict.kind != RETURNED:
        kept.ahead.forget_oom()
    if work.exit_status is not None or not alive:
        kept.lose(kept.gone)
    try:
        if verdict.kind is not None:
            work.publish(verdict)
    finally:
        work.release()
        work.close()
