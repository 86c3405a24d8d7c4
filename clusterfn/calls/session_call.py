"""The calls of a session, and its actors. To its user a call is a Job, on the host a folder below the session's own."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import RETURNED, RUNNING
from clusterfn.calls.job import Job, run_of
from clusterfn.calls.job_run import JobRun
from clusterfn.calls.run import Location
from clusterfn.calls.session_stream import CallStream, SocketSource
from clusterfn.errors import ActorLost, ClusterfnError, ConfigError, Unsatisfiable, WorkerLost

R = TypeVar("R")
_TIMEOUT_S = 60.0
# The link appears in one step, so a session that comes to the call at this moment knows why it must not run. The test
# makes the command safe to repeat.
_WITHDRAW = f'ln -s {layout.CALL} "$1" 2>/dev/null; [ -h "$1" ]'


class ActorCall(NamedTuple):
    """What a call is to an actor.

    Attributes:
        actor: The number of the call that constructs it; 0 for this call itself.
        name: Of the class, or of the method.
        closes: Whether the actor ends with it.
    """

    actor: int
    name: str
    closes: bool = False


class Actors:
    """The actors of one session: each in `living`, by number, has a name and a worker, and others are gone."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.living: dict[int, str] = {}
        self._gone: dict[int, str] = {}
        # Actors without a local object, which may live on the host.
        self._unheld: set[int] = set()

    def end(self, number: int, why: str) -> None:
        """Take note that an actor is gone, or will be before any later call."""
        self.living.pop(number, None)
        self.close(number, why)

    def close(self, number: int, why: str = "it was closed") -> None:
        """Take note that an actor is being closed: it still has its worker."""
        self._gone.setdefault(number, why)
        self._unheld.discard(number)

    def lose(self, number: int, why: str) -> None:
        """Take note that an actor has no local object, and that its host may have it all the same."""
        self.end(number, why)
        self._unheld.add(number)

    def abandon(self, number: int) -> None:
        """Have an actor closed before the next call that needs a worker. The garbage collector calls this: no lock."""
        if number not in self._gone:
            self._unheld.add(number)

    def unheld(self) -> Iterator[int]:
        """Yield the actors to close, as each keeps a worker from the calls that come now."""
        for number in sorted(self._unheld):
            # The number goes first: if closing fails, it is added again.
            self._unheld.discard(number)
            yield number

    def check_room(self, name: str) -> None:
        """Reject a call that no worker could run before an actor is closed."""
        # Waiting for a worker instead could last for ever: the `close()` of the actor may come after this call.
        if len(self.living) < self._workers:
            return
        several = f"all of its {self._workers} workers have actors"
        whose = "its only worker has the actor" if self._workers == 1 else several
        raise ConfigError(
            f"the session has no worker for {name}: {whose} ({', '.join(self.living.values())})",
            hint="close an actor (model.close()), make the call a method of its class, or have more workers:"
            f" Session(workers={self._workers + 1}, …). Each needs its own GPU if the session has GPUs",
        )

    def check(self, number: int, name: str) -> None:
        """Reject a call of an actor that is known to be gone; `ActorLost` says why."""
        if number in self._gone:
            raise actor_lost(name, self._gone[number])


def actor_lost(name: str, why: str, host: str | None = None, job: str | None = None) -> ActorLost:
    """Return the error of a call of an actor that is gone; `host` and `job` are where it was."""
    return ActorLost(
        f"the actor {name} is gone, and its state with it: {why}", host=host, job=job, stage="submit",
        hint=f"create it again: session.actor({name}, …)",
    )  # fmt: skip


class CallLocation(Location):
    """Where a call of a session is: in a folder below that of the session's job, which is at `held`."""

    def __init__(self, held: Location, number: int, of_actor: ActorCall | None = None) -> None:
        # The scheduler itself is only ever asked about the session.
        name, folder = f"{held.scheduler_name}/{number}", layout.call_dir(held.folder, number)
        super().__init__(held.host, f"{held.id}/{number}", folder, name, held.results)
        self._held, self.number, self.of_actor = held, number, of_actor
        # The number of the call that constructs its actor, perhaps this one; 0 without an actor.
        self.actor = 0 if of_actor is None else of_actor.actor or number
        self.constructs = self.actor == number
        self.closes = of_actor is not None and of_actor.closes

    @property
    def work_folder(self) -> str:
        """Where it runs: of a call of an actor where that was constructed."""
        if not self.actor:
            return super().work_folder
        constructed = layout.call_dir(self._held.folder, self.actor)
        return posixpath.join(layout.attempt_dir(constructed, 1), layout.WORK)

    @property
    def taken(self) -> str:
        """What exists once it runs, or was withdrawn: a folder or a link."""
        return posixpath.join(self.folder, layout.TAKEN)

    def log_path(self, stream: str) -> str:
        return self._held.log_path(stream) if stream == "scheduler" else super().log_path(stream)


class SessionCallRun(JobRun):
    """The run of one call of a session, whose job has the run `held`."""

    at: CallLocation

    def __init__(self, at: CallLocation, name: str, held: JobRun, stream: CallStream) -> None:
        super().__init__(at, name)
        self._held, self._stream = held, stream

    def why_silent(self) -> str:
        if self._held.state != RUNNING:
            return super().why_silent()
        return "its session has not begun it yet: it runs earlier calls, or loads modules"

    def withdraw(self) -> bool:
        connection = self.at.connection
        if not connection.link.answers_here():
            # The command below looks for the folder of the call, which exists once the session has taken it.
            self._stream.await_taken(self.at.number, _TIMEOUT_S)
        if self.queue.stop_sending():
            return True
        return connection.run(["/bin/sh", "-c", _WITHDRAW, "sh", self.at.taken]).result(_TIMEOUT_S).rc == 0

    def end_if_stuck(self) -> None:
        """Leave that to the session, which continues."""


class SessionCallJob(Job[R]):
    """One call of the session whose job is `held`; `note_end` gets it once it has ended."""

    def __init__(
        self, held: Job[Any], at: CallLocation, name: str, live: bool, stream: CallStream,
        note_end: Callable[[SessionCallJob[Any]], None] | None = None,
    ) -> None:  # fmt: skip
        self.run = SessionCallRun(at, name, run_of(held), stream)
        self.source = SocketSource(self.run, live, stream, at.number)
        super().__init__(self.run, self.source)
        self.held, self.note_end = held, note_end
        self.add_done_callback(_end)

    def stack(self) -> str:
        """Return the stacks of the session's processes, this call's among them if it runs."""
        return self.held.stack()


def _end(call: Any) -> None:
    """Let go of what a call needs no more that has ended: what has the call itself would keep its value, too."""
    if call.run.queue.sending is not None:
        call.run.queue.sending.on_dropped = None
    # The files of a call that was rejected or withdrawn may never say that it has ended.
    call.run.close()
    # A call that has ended must not keep the others of its session.
    note_end, call.note_end = call.note_end, None
    if note_end is not None:
        note_end(call)


def lost_with(host: Job[Any], why: str, call: SessionCallJob[Any], has_begun: bool) -> ClusterfnError:
    """Make the error of a call from the end of its session, of which `why` says why it ended."""
    if host.state == RETURNED and call.run.at.actor:
        return actor_lost(call.name, f"its session has ended ({why})", call.host, call.id)
    error = None if host.cancelled() else host.exception(0)
    kind: type[ClusterfnError] = WorkerLost
    facts: dict[str, Any] = {}
    if isinstance(error, ClusterfnError):
        kind = type(error)
        facts = {"stage": error.stage, "evidence": error.evidence, "hint": error.hint, "log": error.log}
    message = f"the session of the call has ended: {why}"
    if not has_begun:
        message, facts["stage"] = f"the call had not begun when its session ended: {why}", "queue"
        # The hint of `Unsatisfiable` itself says what to ask for.
        if kind is not Unsatisfiable:
            facts["hint"] = "call again: nothing of it has run"
    return kind(message, host=call.host, job=call.id, **facts)
