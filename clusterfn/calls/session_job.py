"""The job of a session, and the calls that it serves, sent in order.

Methods that run in the caller's thread may wait for the host; callbacks run on the connection's reader thread, and
must not.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from clusterfn.bridge import layout
from clusterfn.bridge.attributes import attribute
from clusterfn.bridge.job_states import PENDING, RUNNING, SHORT, STARTING, SUSPENDED, UNKNOWN
from clusterfn.bridge.supervisor.text import counted, format_duration
from clusterfn.calls import job_display, leaving, sending
from clusterfn.calls.call import Prepared, send_call
from clusterfn.calls.demand import job_name
from clusterfn.calls.job import run_of, withdraw
from clusterfn.calls.session_call import ActorCall, Actors, CallLocation, SessionCallJob, lost_with
from clusterfn.calls.session_stream import CallStream
from clusterfn.config.job_spec import SessionSpec
from clusterfn.display import console
from clusterfn.display.at_once import at_once
from clusterfn.errors import ClusterfnError, ConfigError
from clusterfn.hosts import exit_flush, loop, spoken_wait
from clusterfn.hosts.connection import Reply, TreeFile
from clusterfn.packing import notes
from clusterfn.packing import payload as payloads
from clusterfn.packing.dependencies import NotEnded, Place, reference_of

if TYPE_CHECKING:
    from clusterfn.hosts.host_state import HostState
    from clusterfn.packing.payload import Payload

R = TypeVar("R")
_TIMEOUT_S, _PRIVATE = 60.0, 0o600
_WITHDRAWN_AT_ONCE = 16
# The host looks for or makes so many paths at a time, and does nothing else in that time.
_PATHS_AT_ONCE = 200
_SKIP_AGAIN_S = 5.0
# The session may take a call at the same moment, and then its mark is a file. Only a missing mark is a failure.
_SKIP = 'mkdir -p -- "$@" 2>/dev/null; for path; do [ -e "$path" ] || exit 1; done'


class SessionJob:
    """The job of one session, and its calls."""

    def __init__(self, prepared: Prepared) -> None:
        self.spec, self._host = prepared.job, prepared.host
        self._python, self._count = prepared.environment.python, 0
        self._open: set[SessionCallJob[Any]] = set()
        self._sending: set[Reply[bool]] = set()
        serving = cast(SessionSpec, prepared.job.serving)
        self.actors = Actors(serving.workers)
        self.job = send_call(prepared)
        self._run = run_of(self.job)
        # What exists of calls that were not sent, once the session is to skip their numbers: it serves in order.
        self._unsent: set[str] = set()
        self._skipping = loop.Single(self._skip_all)
        self._stream = CallStream(prepared.host, self.job.folder, self.actors.end)
        self._stream.open()
        idle = format_duration(serving.idle_s)
        leaving.remember_going(self._run, f"it ends after {idle} without a call; to end it now: clusterfn cancel ID")
        self._run.listen(self._note_job_change)

    @property
    def why_over(self) -> str:
        """Why it ended, in words."""
        if self.job.cancelled():
            return "it was withdrawn before it started"
        error = self.job.exception(0)
        if error is not None:
            return str(getattr(error, "message", error))
        return "it was idle" if self.job.result(0)["why"] == "idle" else "it was closed"

    def send(
        self, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str | None, follow: bool,
        of_actor: ActorCall | None = None,
    ) -> SessionCallJob[R]:  # fmt: skip
        """Send one call, or raise `NotEnded` as an actor is leaving the worker that it needs."""
        name = name or str(attribute(fn, "__name__", "function"))
        # A call of a living actor runs in the actor's own worker, so it needs no free one.
        if of_actor is None or not of_actor.actor:
            self._check_room(name)
        with job_display.nothing_runs(), job_display.preparing(name):
            place = Place(self.spec.host.name, self.spec.root, in_session=True)
            payload = payloads.pack(fn, args, kwargs, self._python, place=place)
            # A caller who does not wait for it may change large buffers.
            payload = payload if follow else payload.with_own_buffers()
        notes.tell(payload.notes, self.spec, sending.is_in_place(self.spec.host, self.spec.interpreter))
        self._count += 1
        at = CallLocation(self._run.at, self._count, of_actor)
        call: SessionCallJob[R] = SessionCallJob(self.job, at, job_name(name), follow, self._stream, self._note_end)
        call.run.given = sending.given_paths(self.spec.root, payload)
        self._put(call, payload)
        return call

    def _check_room(self, name: str) -> None:
        try:
            self.actors.check_room(name)
        except ConfigError:
            for call in list(self._open):
                at = call.run.at
                if at.closes or (at.actor and call.run.is_stopping):
                    raise NotEnded(reference_of(call).source, self.actors.living.get(at.actor, "")) from None
            raise

    def _put(self, call: SessionCallJob[Any], payload: Payload) -> None:
        self._open.add(call)
        at = call.run.at
        if at.of_actor is not None and at.constructs:
            self.actors.living[at.actor] = at.of_actor.name
        elif at.closes:
            self.actors.close(at.actor)
        try:
            self._send(call, payload)
        except BaseException:  # a handler of a signal may raise anything
            # After Ctrl-C, for example, the caller has no handle of the call.
            self._open.discard(call)
            # The request may have left this machine all the same.
            if at.closes or at.constructs:
                self.actors.lose(at.actor, "it was being closed" if at.closes else "it was not sent")
            self._skip(at.taken)
            raise
        # The job ended while the call was packed or sent, so `_over` has not failed this call.
        if self.job.done():
            self._over()

    def _note_end(self, call: SessionCallJob[Any]) -> None:
        """Take note of what a call that has ended did to its actor, and then that it is not open any more."""
        at, published = call.run.at, call.run.published
        gone = str(published.get("message" if published.get("kind") == layout.ACTOR_LOST else "actor_gone") or "")
        # Without a known outcome the host may still do what the call says.
        is_known = call.cancelled() or call.run.has_outcome
        if at.closes and not is_known:
            self.actors.lose(at.actor, "it was being closed")
        elif at.closes or (at.actor and gone):
            self.actors.end(at.actor, gone)
        elif at.constructs and (call.cancelled() or call.exception() is not None):
            end = self.actors.end if is_known else self.actors.lose
            end(at.actor, "it could not be constructed")
        self._open.discard(call)

    def close_unheld(self) -> None:
        """Have the host close actors without a local object."""
        for number in self.actors.unheld():
            self.send(type(None), (), {}, "close", False, ActorCall(number, "close", closes=True))

    def _send(self, call: SessionCallJob[Any], payload: Payload) -> None:
        sending.await_room(self._host)
        self._run.queue.await_folder()
        # The session waits for numbers of calls that were not sent, so those that are not marked yet are marked now.
        self._skip()
        needs = sending.send_contents(self._host, payload)
        at = call.run.at
        facts: dict[str, Any] = {"sys_path": list(sending.module_folders(self.spec, payload))}
        if at.of_actor is not None:
            facts.update(actor=at.actor, name=at.of_actor.name, closes=at.closes)
        contents = {layout.PAYLOAD: payload.data, layout.CALL: json.dumps(facts).encode()}
        files = [TreeFile(name, data, _PRIVATE) for name, data in contents.items()]
        send_later = functools.partial(self._send_files, call, files, needs._replace(before=[]))
        # A call that needs uploads first goes as files, which wait for them: through the stream it would overtake them.
        if needs.before or not call.source.send(payload.data, facts, send_later):
            self._send_files(call, files, needs)
            call.source.follow()

    def _send_files(self, call: SessionCallJob[Any], files: Sequence[TreeFile], needs: sending.Uploads) -> None:
        """Send the folder of a call; the host ignores it if it has that already."""
        sent = sending.send_folder(call.run.queue, call.run, files, needs, durable=False)
        self._sending.add(sent)
        loop.begin(self._see_sent(call, sent))
        if call.run.queue.sending is not None:
            call.run.queue.sending.on_dropped = lambda: self._refuse(call, concurrent.futures.CancelledError())

    async def _see_sent(self, call: SessionCallJob[Any], sent: Reply[bool]) -> None:
        """Await the arrival of a call that was sent as files, or fail it."""
        error = await sent.error()
        self._sending.discard(sent)
        # A cancelled request may have reached the host all the same, and the call may run. The code that cancels the
        # request finds that out.
        if error is not None and not isinstance(error, concurrent.futures.CancelledError):
            self._refuse(call, error)

    def _refuse(self, call: SessionCallJob[Any], error: BaseException) -> None:
        if not self.job.done():
            self._skip(call.run.at.taken)
            call.run.fail(call.run.queue.refusal(error, "call"))

    def _skip(self, *unsent: str) -> None:
        """Have the session skip the calls whose `taken` this is, and those of before. Does not wait."""
        self._unsent.update(unsent)
        if self._unsent:
            loop.call(self._skipping.begin)

    async def _skip_all(self) -> None:
        """Send the numbers to skip; again after a while if the host could not write them, as on a full disk."""
        laid_out = self._run.queue.laid_out
        after = [laid_out] if laid_out else []
        while self._unsent and not self._run.is_closed and self._host.is_connected:
            some = sorted(self._unsent)[:_PATHS_AT_ONCE]
            with contextlib.suppress(ClusterfnError):
                answer = await self._host.connection.run(["/bin/sh", "-c", _SKIP, "sh", *some], after=after)
                if answer.rc == 0:
                    self._unsent.difference_update(some)
            if not self._unsent.isdisjoint(some):
                # The session serves calls in order: those behind wait for this, so the pause is short.
                await asyncio.sleep(_SKIP_AGAIN_S)

    def _note_job_change(self, kind: str, _: object) -> None:
        if kind == "done":
            self._over()
        reason = "" if self.job.state == RUNNING else f"its session is {self.job.status}"
        is_going = kind == "state" and self.job.state in (PENDING, STARTING, RUNNING, SUSPENDED)
        for call in list(self._open) if is_going else ():
            if call.state == PENDING and call.reason != reason:
                call.run.set_state(PENDING, reason)

    # its end

    def tell_of_error(self, error: Exception) -> None:
        """Say that the `with` block has raised an error, which is not seen before its calls have ended."""
        if count := sum(not call.done() for call in list(self._open)):
            console.warn(
                f"{type(error).__name__} in the with block of the session: waiting for its {counted(count, 'call')}"
                f" (to end them: clusterfn cancel {self.job.id[:SHORT]})"
            )

    def close(self, wait: bool, cancel_futures: bool) -> None:
        """End the job once the calls have ended."""
        calls = list(self._open)
        try:
            if cancel_futures:
                # Many at once, as each waits for its host.
                for answer in at_once(calls, withdraw, "withdrawing calls", _WITHDRAWN_AT_ONCE):
                    answer.result()
                withdrawn, going = sum(call.cancelled() for call in calls), sum(not call.done() for call in calls)
                rest = f"; {going} that had begun will run to the end" if going else ""
                if withdrawn:
                    console.tell(f"{counted(withdrawn, 'call')} of the session had not begun and will not run{rest}")
        finally:
            # After Ctrl-C, for example, no later call would close it.
            if not self.job.done() and (calls or not withdraw(self.job)):
                self._send_close(wait)
        if wait:
            self.await_end(calls)

    def await_end(self, calls: Sequence[SessionCallJob[Any]] = ()) -> None:
        """Wait until these calls, and the session itself, have ended."""

        def describe() -> str:
            left = sum(not call.done() for call in calls)
            which = f"{counted(left, 'call')} of the session" if left else "the session"
            return f"waiting for {which} on {self.job.host} to end: {self.job.id} is {self.job.status_since}"

        spoken_wait.wait_for([*calls, self.job], describe)

    def _send_close(self, wait: bool) -> None:
        self._run.queue.await_folder()
        self._stream.await_taken(None, _TIMEOUT_S)
        # A large call takes time to arrive.
        before = list(self._sending)
        closing = loop.start(self._close(self._put_close(before), before))
        exit_flush.await_at_exit(closing)
        if wait and not before:
            loop.result(closing, f"waiting for {self.job.host} to close the session {self.job.id}", _TIMEOUT_S)

    def _put_close(self, after: Sequence[Reply[Any]] = ()) -> Reply[bool]:
        place = posixpath.join(self.job.folder, layout.CALLS, layout.CLOSE)
        return self._host.connection.put(place, b"", sync=False, after=after)

    async def _close(self, put: Reply[bool], before: Sequence[Reply[Any]]) -> None:
        """Await the request that closes the session; then say what is printed if the program ends before the job."""
        # The session closes also if the host refuses one of the calls that are sent before.
        if await put.error() is not None and before:
            put = self._put_close()
        await put
        leaving.forget_going(self._run)
        if self._open:
            parting = "it is closed, and ends with its last call; to end it now: clusterfn cancel ID"
            leaving.remember_going(self._run, parting)

    def _over(self) -> None:
        """Fail the calls that were not served. Does not wait."""
        self._stream.close()
        loop.begin(self._fail_lost())

    async def _fail_lost(self) -> None:
        # The connection has ended, and each call gets that error itself.
        if self.job.state == UNKNOWN:
            return
        calls = [call for call in list(self._open) if not call.done()]
        try:
            lost = await _without(self._host, [call.run.at.path(layout.OUTCOME) for call in calls], calls)
            unserved = await _without(self._host, [call.run.at.taken for call in lost], lost)
        except (ClusterfnError, concurrent.futures.CancelledError) as error:
            refused = error if isinstance(error, ClusterfnError) else ClusterfnError(repr(error), stage="session")
            for call in calls:
                call.run.fail(refused)
            return
        for call in lost:
            call.run.fail(lost_with(self.job, self.why_over, call, has_begun=call not in unserved))


async def _without(
    host: HostState, paths: Sequence[str], calls: Sequence[SessionCallJob[Any]]
) -> list[SessionCallJob[Any]]:
    """Return the calls whose path is not on the host."""
    parts = [paths[first : first + _PATHS_AT_ONCE] for first in range(0, len(paths), _PATHS_AT_ONCE)]
    replies = [host.connection.have(part) for part in parts]
    existing = [is_there for reply in replies for is_there in await reply]
    return [call for call, is_there in zip(calls, existing) if not is_there]
