"""Looks, while a job waits or runs, at everything that may end it from outside: signals, a request, another's verdict.

Also keeps the heart beating. Says what it finds by raising `AttemptEnded`; ends nothing itself.
"""

import contextlib
import os
import signal
import time

from ..layout import CANCELLED, GONE, HEARTBEAT_S, LOST, OUTCOME, SCHEDULER_LOG, TIME
from . import classify_exit, publish
from .limits import clock
from .text import format_duration
from .verdict import EXIT_LEFT_TO_AFTER, AttemptEnded, Verdict, concluded_by_another

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Optional

    from .attempt import RunnableAttempt
    from .job import JobFolder

_CANCEL_EVERY_S = 0.2
_FENCE_EVERY_S = 1.0
# scancel signals the script, the supervisor and the worker together, so a SIGTERM is explained after a while.
_SETTLE_S = 0.5
# What SLURM leaves a job between SIGTERM and SIGKILL (KillWait, 30 s), less what it takes to publish an outcome.
KILL_WAIT_S = 20.0
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGCHLD)
_STOPPING = (signal.SIGTSTP, signal.SIGCONT)


class Signals:
    """Signals as bytes in a pipe, and which of them have come."""

    def __init__(self, numbers: "Iterable[int]" = _ENDING + _STOPPING) -> None:
        self.fd, writer = os.pipe()
        for end in (self.fd, writer):
            os.set_blocking(end, False)
        self.came: "dict[int, float]" = {}
        for number in numbers:
            signal.signal(number, lambda came, _frame: self.came.setdefault(came, time.monotonic()))
        signal.set_wakeup_fd(writer)

    def asked_to_end(self) -> bool:
        return signal.SIGTERM in self.came or signal.SIGINT in self.came

    def swallow(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 512):
                continue


class EndWatch:
    """What may end one attempt from outside.

    Args:
        attempt: Its attempt, which an outcome in its folder ends.
        also_ended_by: Another folder in which an outcome ends it: that of the attempt whose task it is.

    Attributes:
        deadline: On the job's clock; None while the function has no time limit running.
        time_s: What the function has of it when it starts; None without a limit.
        warned: Why the function was warned of its end; "" if it was not.
    """

    _what = "job"

    def __init__(self, job: "JobFolder", attempt: "RunnableAttempt", signals: Signals, also_ended_by: str = "") -> None:
        self.signals = signals
        self._fences = [attempt.folder, also_ended_by] if also_ended_by else [attempt.folder]
        self.deadline: "Optional[float]" = None
        self.time_s: "Optional[float]" = job.spec["resources"]["time_s"]
        self._job, self._attempt = job, attempt
        self._script_dead = False
        self.warned = ""
        self._warn_s: "Optional[float]" = job.spec.get("warn_s")
        # A signal has announced this end, and the function is to be warned of it.
        self._announced: "Optional[Verdict]" = None
        # The function must have ended by then.
        self._until = 0.0
        self._next = {"beat": time.monotonic() + HEARTBEAT_S, "fence": 0.0, "cancel": 0.0}

    def of(self, attempt: "RunnableAttempt") -> "EndWatch":
        """The same for the attempt after this one, whose function has the time that is left."""
        self.stop_clock()
        following = EndWatch(self._job, attempt, self.signals)
        following.time_s, following._script_dead = self.time_s, self._script_dead
        return following

    def start_clock(self, began: float) -> None:
        """The function runs since then."""
        self.warned = ""
        if self.time_s is not None:
            self.deadline = began + self.time_s

    def warning(self) -> str:
        """Return why the function is to be warned now; "" if it is not, or was warned before."""
        if self._warn_s is None or self.warned:
            return ""
        if self._announced is not None:
            self.warned = self._announced.message
        elif self.deadline is not None and clock.looked >= self.deadline - self._warn_s:
            self.warned = "%s until its time limit" % format_duration(max(0.0, self.deadline - clock.now()))
        return self.warned

    def heeded(self) -> "Optional[Verdict]":
        """Return the verdict on a function that ended itself because it was warned; None if it was not."""
        if self._announced is not None or self.is_ending():
            return self._on_signal()
        if not self.warned:
            return None
        return self._too_long().replace(message="the function ended when it was warned (%s)" % self.warned)

    def stop_clock(self) -> None:
        """The function does not run; a retry has the time that is left."""
        if self.deadline is not None:
            self.time_s = max(0.0, self.deadline - clock.now())
            self.deadline = None

    def look(self) -> None:
        """Look at what is due; raise AttemptEnded if the attempt must end."""
        self.signals.swallow()
        self._look_at_signals()
        if self._due("beat", HEARTBEAT_S):
            self._attempt.beat()
        if self._due("cancel", _CANCEL_EVERY_S) and self._job.cancelled():
            raise AttemptEnded(cancelled(self._what))
        if self._due("fence", _FENCE_EVERY_S) and any(publish.is_there(folder, OUTCOME) for folder in self._fences):
            raise AttemptEnded(concluded_by_another())
        if self.deadline is not None and clock.looked >= self.deadline:
            raise AttemptEnded(self._too_long())

    def _due(self, name: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._next[name]:
            return False
        self._next[name] = now + every_s
        return True

    def _look_at_signals(self) -> None:
        came = self.signals.came
        if signal.SIGUSR1 in came and not self._script_dead:
            self._script_dead = True
            self._attempt.event("note", message="job.sh was killed; the job keeps running")
        when = self._ended_at()
        if when is None or time.monotonic() < when + _SETTLE_S:
            return
        if self._announced is None:
            self._announce(when)
        if time.monotonic() >= self._until:
            raise AttemptEnded(self._on_signal())

    def _announce(self, when: float) -> None:
        """Find out what a signal means, and by when a function that is warned must have saved its checkpoint.

        Raises:
            AttemptEnded: It means the end, and the function gets no warning.
        """
        found = self._on_signal()
        if self._warn_s is None or found.kind in (CANCELLED, TIME):
            raise AttemptEnded(found)
        # A scheduler that still lists the job as running only announces its end.
        self._announced = found
        self._until = when + (self._warn_s if found.asked else min(self._warn_s, KILL_WAIT_S))

    def _on_signal(self) -> Verdict:
        """Return the verdict on a SIGTERM; for a job that was warned it has a kind, as none will be named later."""
        found = self.terminated()
        if found.kind is None and self._warn_s is not None and self._job.element is None:
            return Verdict(LOST, "the job was asked to end by SIGTERM", stage="supervisor", asked=True)
        return found

    def _ended_at(self) -> "Optional[float]":
        """When a signal came that means the end. The death of job.sh ends a batch job, but not one on a bare host."""
        wanted = [signal.SIGTERM, signal.SIGINT] + ([signal.SIGUSR1] if self._job.scheduler.has_nodes else [])
        times = [self.signals.came[number] for number in wanted if number in self.signals.came]
        return min(times) if times else None

    def is_ending(self) -> bool:
        return self._ended_at() is not None

    def _too_long(self) -> Verdict:
        return classify_exit.too_long(self._job.spec["resources"]["time_s"] or 0.0)

    def terminated(self) -> Verdict:
        """Return the verdict on a SIGTERM to this process."""
        if self._job.cancelled():
            return cancelled(self._what)
        if self.deadline is not None and clock.now() >= self.deadline:
            return self._too_long()
        found = self._job.scheduler.ending(self._job.path(SCHEDULER_LOG))
        unknown = Verdict(None, "the supervisor was asked to end, without a reason", exit_status=EXIT_LEFT_TO_AFTER)
        return found if found is not None and found.kind else unknown


def cancelled(what: str = "job") -> Verdict:
    """Return the verdict that the job was stopped on request."""
    return Verdict(CANCELLED, "the %s was stopped on request" % what)


def as_known(job: "JobFolder", asked: Verdict) -> Verdict:
    """Return the verdict on a job that is gone, with the cause from its own files if they have one: it was cancelled.

    A scheduler may have forgotten the job, or not say who has cancelled it.
    """
    from_scheduler = asked.kind == CANCELLED and asked.stage == "scheduler"
    if not (from_scheduler or asked.kind in GONE) or not job.cancelled():
        return asked
    return asked.replace(kind=CANCELLED, message=cancelled().message, hint=None)
