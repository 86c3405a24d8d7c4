"""One look at a host's scheduler for all of this process's jobs there, often at first and rarely later.

It reports to each job's listener what was seen, and concludes nothing: a job that squeue does not list may still run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from clusterfn.errors import HostError
from clusterfn.hosts import loop, spoken_wait
from clusterfn.scheduler.base import FINAL, RUNNING, Answer, JobState, Scheduler, SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.hosts.connection import CommandLook, HostConnection, Reply

# Where the scheduler lists only waiting jobs, two looks that count against a job are at least this far apart.
_UNLISTED_S = 20.0
# Running jobs need few looks, because the heartbeat of a job that dies reports that sooner.
_RUNNING_S = 300.0
# A scheduler serves all users of a cluster, so this process asks it no more often than this on average.
_RARE_S = 60.0
# So many looks may come sooner than `_RARE_S` allows. The allowance fills up again at that rate.
_SOON = 6
UNREACHABLE = "the scheduler has been unreachable"


class Silent(NamedTuple):
    """The scheduler does not answer. Says nothing about the job.

    Attributes:
        for_s: Seconds since its last answer, or since the job was added.
        message: Its own words.
    """

    for_s: float
    message: str

    @property
    def in_words(self) -> str:
        """Say so, with what its command printed."""
        return f"{UNREACHABLE} for {self.for_s:.0f} s: {self.message}"


Seen = Union[JobState, Silent, None]


@dataclass
class LookCounter:
    """Counts the looks in a row at which a job could never start, or was gone: one look proves nothing.

    Attributes:
        hopeless: Looks at which the scheduler said why it will never start.
        gone: Looks at which it had ended, or the scheduler did not know it.
    """

    hopeless: int = 0
    gone: int = 0

    def count(self, state: JobState | None, host: str) -> SchedulerVerdict | None:
        """Count one look at a job of this host; return the verdict on one that will never start."""
        verdict = None if state is None else state.hopeless(host)
        self.hopeless = self.hopeless + 1 if verdict is not None else 0
        self.gone = self.gone + 1 if state is None or state.phase == FINAL else 0
        return verdict


Listener = Callable[[Seen], None]


@dataclass
class _Watched:
    listener: Listener
    added: float
    time_s: float | None
    has_begun: Callable[[], bool]
    # How many looks in a row have seen it run, once it has reported that it began. Two count.
    running: int = 0
    missed: float | None = None


class LookAllowance:
    """Lets a few looks be made soon after one another, and otherwise one a minute.

    New jobs are looked at soon. A program that sends one every few seconds would else ask the scheduler as often.
    """

    def __init__(self, now: float) -> None:
        self._left, self._counted = float(_SOON), now

    def spend(self, now: float) -> None:
        """Count a look that was made."""
        self._left, self._counted = max(0.0, self._at(now) - 1), now

    def is_left(self, now: float) -> bool:
        """Whether another look may be made soon."""
        return self._at(now) >= 1

    def _at(self, now: float) -> float:
        return min(float(_SOON), self._left + (now - self._counted) / _RARE_S)


class SchedulerWatch:
    """Looks at the scheduler for the jobs that were added. Its state, and the calls of listeners, are the loop's.

    Args:
        poll_floor_s: Never look more often, whatever happens (`poll_floor:` of the host).
    """

    def __init__(
        self,
        connection: HostConnection,
        scheduler: Scheduler,
        *,
        clock: Callable[[], float] = time.monotonic,
        poll_floor_s: float = 2.0,
    ) -> None:
        self._connection = connection
        self._scheduler = scheduler
        self._clock = clock
        self._floor_s = poll_floor_s
        self._jobs: dict[str, _Watched] = {}
        # The jobs that do not run yet, the youngest last.
        self._waiting: dict[str, _Watched] = {}
        self._allowance = LookAllowance(clock())
        self._repeating: Reply[Any] | None = None
        self._interval_s = 0.0
        # The time of the last look, and below that of the last one that the scheduler answered.
        self._last_look_at: float | None = None
        self._answered: float | None = None
        self._loosened: set[str] = set()

    def add(
        self, job_name: str, listener: Listener, time_s: float | None = None,
        has_begun: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """Call `listener` at each look with the job's state, None where it was not listed, or `Silent`.

        Args:
            time_s: For how long the job may run, as its call asks.
            has_begun: Whether the job itself has reported that it began. Until then only a look can show that it died.
        """
        loop.call(self._add, job_name, _Watched(listener, self._clock(), time_s, has_begun))

    def _add(self, job_name: str, job: _Watched) -> None:
        # Remove the old entry first: assigning to an existing key would leave the job at its old place in the order.
        self._waiting.pop(job_name, None)
        self._jobs[job_name] = self._waiting[job_name] = job
        self._repeat()

    def remove(self, job_name: str) -> None:
        """Stop telling; the last job to go ends the looking."""
        loop.call(self._remove, job_name)

    def _remove(self, job_name: str) -> None:
        # Calls of a session are removed like jobs, but were never added.
        job = self._jobs.pop(job_name, None)
        self._loosened.discard(job_name)
        self._waiting.pop(job_name, None)
        if job is not None:
            self._repeat()

    def look_now(self) -> None:
        """Look soon, as far as `poll_floor_s` and the allowance let it: a heartbeat is stale."""
        loop.call(self._look_soon)

    def _look_soon(self) -> None:
        rarely = self._scheduler.has_nodes and not self._allowance.is_left(self._clock())
        soon = max(self._floor_s, _RARE_S) if rarely else self._floor_s
        if not 0 < self._interval_s <= soon:
            self._repeat(soon)

    def last_look(self, timeout_s: float) -> Mapping[str, JobState] | str:
        """Return the states of the user's jobs by name, as they are now; text says why not."""
        first_look: Future[CommandLook] = Future()

        def take_first(look: CommandLook) -> None:
            if not first_look.done():
                first_look.set_result(look)

        command, unset = self._scheduler.watch_command(), self._scheduler.unset
        looking = self._connection.repeat(command, _RARE_S, unset=unset, on_look=take_first)
        loop.begin(_fail_with(looking, first_look))
        title = self._scheduler.title
        try:
            if not spoken_wait.wait_for_answer(first_look, lambda: f"waiting for {title} to list its jobs", timeout_s):
                return f"{title} has not answered for {timeout_s:.0f} s"
            look = first_look.result()
        except HostError as failed:
            return f"{title} could not be asked: {failed.message}"
        finally:
            looking.cancel()
        trouble = self._scheduler.trouble(Answer(look.rc, look.out, look.err))
        return trouble or self._scheduler.parse_states(look.out)

    def _repeat(self, interval_s: float | None = None) -> None:
        # Over a connection that has ended, the command of the next look would open another one. One that ends in this
        # moment ends the jobs too, and one that waits for a login is asked again at the next change.
        if self._connection.link.usable():
            with contextlib.suppress(HostError):
                command = self._scheduler.watch_command()
                next_s = max(self._next_s(), self._floor_s) if interval_s is None else interval_s
                self._look_every(next_s if self._jobs and command else 0.0, command)

    def _look_every(self, interval_s: float, command: Sequence[str]) -> None:
        if interval_s == self._interval_s:
            return
        # Clear these before cancelling: the end of the old request comes at once, and must not count as a failure.
        before, self._repeating, self._interval_s = self._repeating, None, 0.0
        if before is not None:
            before.cancel()
        if interval_s:
            due = 0.0 if self._last_look_at is None else self._last_look_at + interval_s
            delay_s = max(0.0, due - self._clock())
            unset = self._scheduler.unset
            self._repeating = repeating = self._connection.repeat(
                command, interval_s, delay_s=delay_s, unset=unset, on_look=lambda look: loop.call(self._take, look)
            )
            self._interval_s = interval_s
            loop.begin(self._see_end(repeating))

    def _next_s(self) -> float:
        """Return the seconds until the next look, by the youngest job that does not run: it is looked at soonest."""
        if not self._waiting:
            return _RUNNING_S
        now = self._clock()
        youngest = self._waiting[next(reversed(self._waiting))]
        soon = next(interval for until, interval in self._scheduler.looks_s if now - youngest.added < until)
        return soon if not self._scheduler.has_nodes or self._allowance.is_left(now) else max(soon, _RARE_S)

    async def _see_end(self, repeating: Reply[Any]) -> None:
        """Let the next change of interval look again: the host could not repeat the command."""
        await repeating.error()
        if repeating is self._repeating:
            self._repeating, self._interval_s = None, 0.0

    def _take(self, look: CommandLook) -> None:
        reports = self._reports(look)
        self._repeat()
        for listener, report in reports:
            listener(report)

    def _reports(self, look: CommandLook) -> list[tuple[Listener, Seen]]:
        now = self._last_look_at = self._clock()
        self._allowance.spend(now)
        trouble = self._scheduler.trouble(Answer(look.rc, look.out, look.err))
        if trouble:
            since = self._answered
            return [
                (job.listener, Silent(now - (job.added if since is None else since), trouble))
                for job in self._jobs.values()
            ]
        self._answered = now - look.took_s
        states = self._scheduler.parse_states(look.out)
        # A job that was added after the look began cannot be in its answer. Of thousands, a look takes seconds.
        covered = {name: job for name, job in self._jobs.items() if job.added <= self._answered}
        self._loosen({name: states[name] for name in covered if name in states})
        for name, job in covered.items():
            runs = name in states and states[name].phase == RUNNING and job.has_begun()
            job.running = job.running + 1 if runs else 0
        waiting = [(name, job) for name, job in self._jobs.items() if job.running < 2]
        self._waiting = dict(sorted(waiting, key=lambda item: item[1].added))
        return [(job.listener, states.get(name)) for name, job in covered.items() if self._is_news(job, name in states)]

    def _loosen(self, states: Mapping[str, JobState]) -> None:
        """Take back, once, what clusterfn itself added to a job that may never start with it."""
        for name, state in states.items():
            time_s = self._jobs[name].time_s
            command = () if name in self._loosened else self._scheduler.loosen_command(state, time_s)
            if command:
                self._loosened.add(name)
                self._connection.run(command, unset=self._scheduler.unset)

    def _is_news(self, job: _Watched, listed: bool) -> bool:
        """Space out the looks: some callers count those at which a job was missing, and must not count faster."""
        if listed or self._scheduler.knows_all:
            job.missed = None
            return True
        if job.missed is not None and self._clock() - job.missed < _UNLISTED_S:
            return False
        job.missed = self._clock()
        return True


async def _fail_with(repeating: Reply[Any], first_look: Future[CommandLook]) -> None:
    """Let a caller that waits for a first look know why none comes."""
    error = await repeating.error()
    if isinstance(error, HostError) and not first_look.done():
        first_look.set_exception(error)
