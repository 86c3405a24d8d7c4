"""The calls of a session, and its actors. To its user a call is a Job, on the host a folder below the session's own.

It is followed by its files as a job is, or heard through the session's stream, which says what is appended to them.
`Actors` knows which actors hold workers, and why others are gone.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import RETURNED, RUNNING
from clusterfn.calls.arriving import Arriving
from clusterfn.calls.following import AgentSource, OnOutput, lose, see_through, take_outcome
from clusterfn.calls.job import Job
from clusterfn.calls.job_run import JobRun
from clusterfn.calls.run import Location
from clusterfn.calls.session_stream import PATHS_AT_ONCE, CallStream, StreamedCall
from clusterfn.errors import ActorLost, ClusterfnError, ConfigError, ResultError, Unsatisfiable, WorkerLost
from clusterfn.hosts import loop

if TYPE_CHECKING:
    from clusterfn.hosts.host_state import HostState

R = TypeVar("R")
_TIMEOUT_S = 60.0
# The link appears in one step, so a session that comes to the call at this moment knows why it must not run. The test
# makes the command safe to repeat.
_WITHDRAW = f'ln -s {layout.CALL} "$1" 2>/dev/null; [ -h "$1" ]'
# Packing this many bytes takes no noticeable time.
_SMALL = 1 << 20


@dataclass(frozen=True)
class ActorCall:
    """What a call is to an actor.

    Attributes:
        actor: The number of the call that constructs it; 0 for this call itself.
        name: Of the class, or of the method.
        closes: Whether the actor ends with it.
    """

    actor: int
    name: str
    closes: bool = False

    def facts(self, number: int) -> dict[str, Any]:
        """Return what goes into the call.json of the call with this number."""
        return {"actor": self.actor or number, "name": self.name, **({"closes": True} if self.closes else {})}


class Actors:
    """The actors of one session.

    Args:
        workers: How many workers it has, each of which can have one actor.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._living: dict[int, str] = {}
        self._gone: dict[int, str] = {}
        # Actors without a local object, which may live on the host.
        self._unheld: set[int] = set()
        # Actors whose local object is gone. Some of them are closed already.
        self._abandoned: set[int] = set()

    def begin(self, number: int, name: str) -> None:
        """Take note of an actor that is to be constructed."""
        self._living[number] = name

    def end(self, number: int, why: str) -> None:
        """Take note that an actor is gone, or will be before any later call."""
        self._living.pop(number, None)
        self._gone.setdefault(number, why)

    def close(self, number: int) -> None:
        """Take note that an actor is being closed: it still has its worker."""
        self._gone.setdefault(number, "it was closed")

    def lose(self, number: int, why: str) -> None:
        """Take note that an actor has no local object, and that its host may have it all the same."""
        self.end(number, why)
        self._unheld.add(number)

    def abandon(self, number: int) -> None:
        """Have an actor closed before the next call that needs a worker. The garbage collector calls this: no lock."""
        self._abandoned.add(number)

    def unheld(self) -> Iterator[int]:
        """Yield the actors to close, as each keeps a worker from the calls that come now."""
        for number in sorted(self._unheld):
            # The number goes first: if closing fails, it is added again.
            self._unheld.discard(number)
            yield number
        for number in sorted(self._abandoned):
            self._abandoned.discard(number)
            if not self.is_gone(number):
                yield number

    def is_gone(self, number: int) -> bool:
        """Whether an actor is gone, or being closed."""
        return number in self._gone

    def name_of(self, number: int) -> str:
        """Return the name of an actor's class."""
        return self._living.get(number, "")

    def check_room(self, name: str) -> None:
        """Reject a call that no worker could run before an actor is closed.

        Raises:
            ConfigError: Actors have all of them.
        """
        # Waiting for a worker instead could last for ever: the `close()` of the actor may come after this call.
        if len(self._living) < self._workers:
            return
        names = ", ".join(self._living.values())
        whose = "its only worker" if self._workers == 1 else f"all of its {self._workers} workers"
        raise ConfigError(
            f"the session has no worker for {name}: {whose} {'has the actor' if self._workers == 1 else 'have actors'} "
            f"({names})",
            hint="close an actor (model.close()), make the call a method of its class, or have more workers:"
            f" Session(workers={self._workers + 1}, …). Each needs its own GPU if the session has GPUs",
        )

    def check(self, number: int, name: str) -> None:
        """Reject a call of an actor that is known to be gone.

        Raises:
            ActorLost: It is; the message says why.
        """
        if number in self._gone:
            raise actor_lost(name, self._gone[number])


def actor_lost(name: str, why: str, host: str | None = None, job: str | None = None) -> ActorLost:
    """Return the error of a call of an actor that is gone; `host` and `job` are where it was."""
    return ActorLost(
        f"the actor {name} is gone, and its state with it: {why}", host=host, job=job, stage="submit",
        hint=f"create it again: session.actor({name}, …)",
    )  # fmt: skip


def is_packed_at_once(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether packing these takes no time that is worth a word, nor a thread that would say it."""
    return all(
        isinstance(value, (int, float, type(None))) or (isinstance(value, (str, bytes)) and len(value) < _SMALL)
        for value in (*args, *kwargs.values())
    )


class CallLocation(Location):
    """Where a call of a session is: in a folder below the session's own.

    Args:
        held: Where the session's job is.
        number: Which of its calls.
        of_actor: What it is to an actor, if it is a call of one.
    """

    def __init__(self, held: Location, number: int, of_actor: ActorCall | None) -> None:
        # The scheduler itself is only ever asked about the session.
        name, folder = f"{held.scheduler_name}/{number}", layout.call_dir(held.folder, number)
        super().__init__(held.host, f"{held.id}/{number}", folder, name, results=held.results)
        self._held, self.number, self.of_actor = held, number, of_actor

    @property
    def facts(self) -> dict[str, Any]:
        """What its call.json says of an actor."""
        return self.of_actor.facts(self.number) if self.of_actor is not None else {}

    @property
    def work_folder(self) -> str:
        """Where it runs: of a call of an actor where that was constructed."""
        if self.of_actor is None:
            return super().work_folder
        constructed = layout.call_dir(self._held.folder, self.facts["actor"])
        return posixpath.join(layout.attempt_dir(constructed, 1), layout.WORK)

    @property
    def taken(self) -> str:
        """What exists once it runs, or was withdrawn: a folder or a link."""
        return posixpath.join(self.folder, layout.TAKEN)

    def log_path(self, stream: str) -> str:
        """Return the call's own file, or the session's for "scheduler"."""
        return self._held.log_path(stream) if stream == "scheduler" else super().log_path(stream)


class SessionCallRun(JobRun):
    """The run of one call of a session.

    Args:
        at: Where it is.
        held: The run of the session's job.
        stream: The session's.
    """

    def __init__(self, at: CallLocation, name: str, held: JobRun, stream: CallStream) -> None:
        super().__init__(at, name)
        self._taken, self._number, self._held, self._stream = at.taken, at.number, held, stream

    def why_silent(self) -> str:
        """Say what a session that runs does before it begins a call."""
        if self._held.state != RUNNING:
            return super().why_silent()
        return "its session has not begun it yet: it runs earlier calls, or loads modules"

    def withdraw(self) -> bool:
        """Keep it from ever starting; false if it has started."""
        connection = self.at.connection
        if not connection.link.answers_here():
            # The command below looks for the folder of the call, which exists once the session has taken it.
            self._stream.await_taken(self._number, _TIMEOUT_S)
        if self.queue.stop_sending():
            return True
        return connection.run(["/bin/sh", "-c", _WITHDRAW, "sh", self._taken]).result(_TIMEOUT_S).rc == 0

    def stop(self) -> None:
        """End it and every process of it; the session continues."""
        if self.done():
            return
        if not self.withdraw():
            self.at.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)
        self.is_stopping = True


class SessionCallJob(Job[R]):
    """One call of a session: to its user a Job, on the host a folder below the session's own.

    Args:
        held: The session's job.
        note_end: Called with it once it has ended.

    Attributes:
        tracker: What follows it.
    """

    def __init__(
        self, held: Job[Any], tracker: SessionCallTracker, note_end: Callable[[SessionCallJob[Any]], None] | None = None
    ) -> None:  # fmt: skip
        super().__init__(tracker.run, tracker.source)
        self.held = held
        self.tracker = tracker
        self.note_end = note_end
        self.add_done_callback(_end)

    @property
    def actor_gone(self) -> str:
        """Why its actor is gone, if it has ended with that; "" otherwise."""
        outcome = self.tracker.run.published
        if outcome.get("kind") == layout.ACTOR_LOST:
            return str(outcome.get("message"))
        return str(outcome.get("actor_gone") or "")

    def stack(self) -> str:
        """Return the stacks of the session's processes, this call's among them if it runs."""
        return self.held.stack()


def _end(call: Any) -> None:
    """Let go of what a call needs no more that has ended: what has the call itself would keep its value, too."""
    if call.tracker.run.queue.sending is not None:
        call.tracker.run.queue.sending.on_dropped = None
    # The files of a call that was rejected or withdrawn may never say that it has ended.
    call.tracker.run.close()
    # A call that has ended must not keep the others of its session.
    note_end, call.note_end = call.note_end, None
    if note_end is not None:
        note_end(call)


class SessionCallTracker(StreamedCall):
    """Follows one call of a session: through the session's stream, or by its files.

    Args:
        held: The run of the session's job.
        number: Which of its calls.
        live: Whether what it prints is followed.
        stream: The session's.
        of_actor: What it is to an actor, if it is a call of one.

    Attributes:
        at: Where it is.
        run: The call's.
        source: Where what it prints comes from.
    """

    _send_files: Callable[[], None] | None = None

    def __init__(
        self, held: JobRun, number: int, name: str, live: bool, stream: CallStream, of_actor: ActorCall | None = None
    ) -> None:
        self.number, self.of_actor = number, of_actor
        self.at = CallLocation(held.at, number, of_actor)
        self.run = SessionCallRun(self.at, name, held, stream)
        self.source = AgentSource(self.run, live)
        self.run.at_close.append(self._forget)
        self._stream = stream
        self._heard: dict[str, int] = {}
        self._hearing: Sequence[OnOutput] = ()

    def _forget(self) -> None:
        self._send_files = None
        self._stream.forget(self.number)

    def send(self, payload: bytes, facts: Mapping[str, Any], send_files: Callable[[], None]) -> bool:
        """Send the call through the stream, and hear it there; return whether it went this way.

        Args:
            payload: It as bytes.
            facts: What its call.json says.
            send_files: Sends it as files, unless the host has it.
        """
        self._send_files = send_files
        self._hearing = self.source.begin(1)
        self._heard = dict.fromkeys((layout.EVENTS, layout.STDOUT, layout.STDERR), 0)
        return self._stream.send(self.number, self, payload, facts, bool(self._hearing))

    def append(self, file: str, data: bytes) -> None:
        """Take what was appended to one of its files."""
        self._heard[file] += len(data)
        if file != layout.EVENTS:
            for on_output in self._hearing:
                on_output(file, data)
        else:
            self.source.take_events(data)

    def conclude(self, content: bytes, value: bytes | None) -> None:
        """Take its outcome, and its value if that came with it; fetch it otherwise."""
        run = self.run
        if run.is_closed:
            return
        if value is None and not run.at.is_fetched_apart:
            self._follow_rest()
            return
        if value is not None and not run.at.is_fetched_apart:
            arriving = Arriving(run.at.place)
            try:
                arriving.announce(content)
                arriving.write(value)
            except ResultError as error:
                lose(run, error, arriving.kind)
                return
            self.source.arriving = arriving
        waiting = take_outcome(run, self.source, content)
        if waiting is not None:
            loop.begin(see_through(run, self.source, waiting))

    def go_on_with_files(self, has_arrived: bool) -> None:
        """Follow its files, as its stream is lost; send it as files too, unless it has arrived."""
        send_files = self._send_files
        # The call has ended.
        if self.run.is_closed or send_files is None:
            return
        try:
            if not has_arrived:
                send_files()
            self._follow_rest()
        except ClusterfnError as error:
            # The connection has ended at this moment.
            lost = copy.copy(error)
            lost.job = self.run.id
            self.run.lose(lost)
            self.run.close()

    def give_up(self, error: BaseException) -> None:
        """Take the error of a connection that is not opened again, as a call does that follows its files."""
        lose(self.run, error)

    def _follow_rest(self) -> None:
        """Follow its files from where the stream has ended."""
        waiting = self.source.follow_files(self._hearing, self._heard)
        loop.begin(see_through(self.run, self.source, waiting))
        # A refusal may have closed it in the meantime, before there was a request to cancel.
        if self.run.is_closed:
            self.source.close()


def lost_with(host: Job[Any], why: str, call: SessionCallJob[Any], has_begun: bool) -> ClusterfnError:
    """Make the error of a call from the end of its session, of which `why` says why it ended."""
    if host.state == RETURNED and call.tracker.of_actor is not None:
        return actor_lost(call.name, f"its session has ended ({why})", call.host, call.id)
    error = None if host.cancelled() else host.exception(0)
    kind = type(error) if isinstance(error, ClusterfnError) else WorkerLost
    facts: dict[str, Any] = {}
    if isinstance(error, ClusterfnError):
        facts = {"stage": error.stage, "evidence": error.evidence, "hint": error.hint, "log": error.log}
    message = f"the session of the call has ended: {why}"
    if not has_begun:
        message = f"the call had not begun when its session ended: {why}"
        facts["stage"] = "queue"
        # The hint of `Unsatisfiable` itself says what to ask for.
        if kind is not Unsatisfiable:
            facts["hint"] = "call again: nothing of it has run"
    return kind(message, host=call.host, job=call.id, **facts)


async def without(
    host: HostState, paths: Sequence[str], calls: Sequence[SessionCallJob[Any]]
) -> list[SessionCallJob[Any]]:
    """Return the calls whose path is not on the host."""
    parts = [paths[first : first + PATHS_AT_ONCE] for first in range(0, len(paths), PATHS_AT_ONCE)]
    replies = [host.connection.have(part) for part in parts]
    existing = [is_there for reply in replies for is_there in await reply]
    return [call for call, is_there in zip(calls, existing) if not is_there]
