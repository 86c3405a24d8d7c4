"""One call of a session: to its user a Job, on the host a folder below the session's own.

It is followed by its files as a job is, or heard through the session's stream, which says what is appended to them.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from clusterfn.bridge import layout
from clusterfn.calls.arriving import Arriving
from clusterfn.calls.job import Job
from clusterfn.calls.job_tracker import JobListener, Tracker
from clusterfn.errors import ClusterfnError, ResultError

if TYPE_CHECKING:
    from clusterfn.calls.payload import Payload
    from clusterfn.calls.session_actor import ActorCall
    from clusterfn.calls.session_stream import CallStream
    from clusterfn.hosts.connection import Reply

R = TypeVar("R")
_TIMEOUT_S = 60.0
# One step, so that a session which comes to the call meanwhile knows why it must not run; a command may be run twice.
_WITHDRAW = f'ln -s {layout.CALL} "$1" 2>/dev/null; [ -h "$1" ]'


class SessionCallJob(Job[R]):
    """One call of a session: to its user a Job, on the host a folder below the session's own.

    Args:
        held: The session's job.
        payload: The call as bytes, in case that it must be sent again.
    """

    def __init__(self, held: Job[Any], payload: Payload, tracker: SessionCallTracker) -> None:
        super().__init__(f"{held.id}/{tracker.number}", tracker.name, held.host, tracker.folder, tracker)
        self.held = held
        self.tracker = tracker
        self.payload: Payload | None = payload
        self.add_done_callback(lambda _: self._forget())

    def _forget(self) -> None:
        self.payload = None
        if self.tracker.sending is not None:
            self.tracker.sending.on_dropped = None  # which has this call
        self.tracker.end()  # the files of one that was refused or withdrawn may never say that it has ended

    @property
    def actor_gone(self) -> str:
        """Why its actor is gone, if it has ended with that; "" otherwise."""
        if self._outcome.get("kind") == layout.ACTOR_LOST:
            return str(self._outcome.get("message"))
        return str(self._outcome.get("actor_gone") or "")

    def stack(self) -> str:
        """Return the stacks of the session's processes, this call's among them if it runs."""
        return self.held.stack()

    def move(self, held: Job[Any], tracker: SessionCallTracker) -> None:
        """Move it to another session, because the first ended before its turn."""
        self.tracker.end()
        tracker.shown_by = self.tracker.shown_by
        self.held, self.folder = held, tracker.folder
        self.tracker = self._tracker = tracker


class SessionCallTracker(Tracker):
    """Follows one call of a session.

    Args:
        holder: The tracker of the session's job.
        number: Which of its calls.
        live: Whether what it prints is followed.
        stream: The session's.
        of_actor: What it is to an actor, if it is a call of one.
    """

    def __init__(
        self, holder: Tracker, number: int, name: str, live: bool, stream: CallStream, of_actor: ActorCall | None = None
    ) -> None:  # fmt: skip
        super().__init__(holder.session, posixpath.basename(holder.folder), name, live, results=holder.results)
        self.number, self.name, self.of_actor = number, name, of_actor
        self._holder = holder
        self._stream = stream
        self._heard: dict[str, int] = {}
        self._hearing: Sequence[Callable[[str, bytes], Any]] = ()
        self._is_over = False
        self.folder = layout.call_dir(holder.folder, number)
        self.scheduler_name = f"{holder.scheduler_name}/{number}"  # the scheduler is only asked about the session

    @property
    def facts(self) -> dict[str, Any]:
        """What its call.json says of an actor."""
        return self.of_actor.facts(self.number) if self.of_actor is not None else {}

    @property
    def work_folder(self) -> str:
        """Where it runs: of a call of an actor where that was constructed."""
        if self.of_actor is None:
            return super().work_folder
        constructed = layout.call_dir(self._holder.folder, self.facts["actor"])
        return posixpath.join(layout.attempt_dir(constructed, 1), layout.WORK)

    @property
    def taken(self) -> str:
        """What exists once it runs, or was withdrawn: a folder or a link."""
        return posixpath.join(self.folder, layout.TAKEN)

    @property
    def outcome(self) -> str:
        """The file that exists once it has ended."""
        return posixpath.join(self.attempt_folder, layout.OUTCOME)

    def log_path(self, stream: str) -> str:
        """Return the call's own file, or the session's for "scheduler"."""
        return self._holder.log_path(stream) if stream == "scheduler" else super().log_path(stream)

    def withdraw(self) -> bool:
        """Keep it from ever starting; false if it has started."""
        if not self.connection.answers_here():
            self._stream.await_taken(self.number, _TIMEOUT_S)  # what follows looks for its folder
        if self._stop_sending():
            return True
        return self.connection.run(["/bin/sh", "-c", _WITHDRAW, "sh", self.taken]).result(_TIMEOUT_S).rc == 0

    def stop(self, on_left: Callable[[str], object]) -> None:
        """End it and every process of it; the session continues."""
        if not self.withdraw():
            self.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)

    def hear(self, job: Job[Any]) -> bool:
        """Prepare to hear it through the stream; return whether what it prints is to be heard."""
        with self._choosing_attempt:
            self._hearing = [*self.shown_by, *([job.on_output] if self.live else [])]
        self._watch_connection(job)
        self._partial, self.events_read = b"", 0
        self._heard = dict.fromkeys((layout.EVENTS, layout.STDOUT, layout.STDERR), 0)
        return bool(self._hearing)

    def on_news(self, job: Job[Any], file: str, data: bytes) -> None:
        """Take what was appended to one of its files."""
        self._heard[file] += len(data)
        if file == layout.EVENTS:
            self._on_events(job, data)
            return
        for on_output in self._hearing:
            on_output(file, data)

    def on_end(self, job: Job[Any], told: bytes, value: bytes | None) -> None:
        """Take its outcome; fetch its value if that did not come with it."""
        if value is None and not self.is_fetched_apart:
            self.follow_rest(job)
            return
        if value is not None and not self.is_fetched_apart:
            arriving = Arriving(self._place(job))
            try:
                arriving.announce(told)
                arriving.write(value)
            except ResultError as error:
                job.on_refused(error, arriving.kind)
                self.end()
                return
            self.arriving_outcome = arriving
        self._take_outcome(job, told)

    def follow_rest(self, job: Job[Any]) -> None:
        """Follow its files from where the stream has ended."""
        self._follow_files(job, self._hearing, self._heard)

    def _follow_files(
        self, job: JobListener, shown_by: Sequence[Callable[[str, bytes], Any]], heard: Mapping[str, int]
    ) -> None:
        super()._follow_files(job, shown_by, heard)
        if self._is_over:  # it was refused in this moment
            self.end()

    def receive_outcome(self, job: JobListener, reply: Reply[bytes]) -> None:
        if not self._is_over:
            super().receive_outcome(job, reply)
        elif self.arriving_outcome is not None:  # `end` has cancelled the request
            self.arriving_outcome.drop()

    def end(self) -> None:
        """Stop following it, and cancel the open requests."""
        requests = [*self._follows, *([self.awaited] if self.awaited is not None else [])]
        self._is_over = True
        super().end()
        self._stream.forget(self.number)
        for reply in requests:
            if not reply.done():
                reply.cancel()

    def remove(self) -> None:
        """Refuse: what the session holds stays until the session itself is removed."""
        raise ClusterfnError(
            f"{self.name} is a call of a session, whose files stay together", host=self.session.host.name,
            hint=f"remove the session once it has ended: clusterfn rm {posixpath.basename(self._holder.folder)}",
        )  # fmt: skip


class StreamedSessionCall:
    """A call that goes through the stream of its session.

    Args:
        call: It.
        send_files: Sends it as files, unless the host has it.
    """

    def __init__(self, call: SessionCallJob[Any], send_files: Callable[[], None]) -> None:
        self._call = call
        self._tracker = call.tracker
        self._send_files = send_files

    def send(self, stream: CallStream, payload: bytes, facts: Mapping[str, Any]) -> bool:
        """Send it, and what its call.json says; return whether it went this way."""
        return stream.send(self._tracker.number, self, payload, facts, self._tracker.hear(self._call))

    def on_news(self, file: str, data: bytes) -> None:
        """Take what was appended to one of its files."""
        self._tracker.on_news(self._call, file, data)

    def on_end(self, told: bytes, value: bytes | None) -> None:
        """Take its outcome, and its value if that came with it."""
        self._tracker.on_end(self._call, told, value)

    def on_lost(self, has_arrived: bool) -> None:
        """Go on with the files; send it as files too, unless it has arrived."""
        if self._call.done() or self._call.tracker is not self._tracker:  # it was moved to another session
            return
        try:
            if not has_arrived:
                self._send_files()
            self._tracker.follow_rest(self._call)
        except ClusterfnError as error:  # the connection has ended in this moment
            lost = copy.copy(error)
            lost.job = self._call.id
            self._call.on_lost(lost)
            self._tracker.end()

    def on_dead(self, reply: Reply[None]) -> None:
        """Take the error of a connection that is not opened again, as a call does that follows its files."""
        if not self._call.done() and self._call.tracker is self._tracker:
            self._tracker.receive_outcome(self._call, cast("Reply[Any]", reply))
