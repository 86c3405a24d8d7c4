"""The job of a session, and the calls that it serves: sent in order, and moved to another session if it has ended.

Methods that run in the caller's thread may wait for the host; callbacks run on the connection's reader thread, and
must not.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import json
import posixpath
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.attributes import attribute
from clusterfn.bridge.job_states import PENDING, RETURNED, RUNNING, SHORT, STARTING, SUSPENDED, UNKNOWN
from clusterfn.calls import console, job_display, submit
from clusterfn.calls import payload as payloads
from clusterfn.calls.call import Prepared, job_name, send_call, tell_decisions, tell_left_out
from clusterfn.calls.dependencies import NotEnded, Place
from clusterfn.calls.session_actor import ActorCall, Actors, actor_lost, is_packed_at_once
from clusterfn.calls.session_stream import CallStream
from clusterfn.calls.session_tracker import SessionCallJob, SessionCallTracker, StreamedSessionCall
from clusterfn.errors import ClusterfnError, ConfigError, Unsatisfiable, WorkerLost
from clusterfn.hosts import exit_flush, spoken_wait
from clusterfn.hosts.connection import Completed, Reply, TreeFile
from clusterfn.hosts.host_state import CALLER

if TYPE_CHECKING:
    from clusterfn.calls.payload import Payload

R = TypeVar("R")
_TIMEOUT_S = 60.0
_PRIVATE = 0o600
_PATHS = 200  # that the host looks for or makes at a time: it does nothing else meanwhile
_WITHDRAWN_AT_ONCE = 16
# A call may be taken in the same moment: what it is marked by is a file.
_SKIP = 'mkdir -p -- "$@" 2>/dev/null; for path; do [ -e "$path" ] || exit 1; done'


class SessionJob:
    """The job of one session, and its calls.

    Args:
        prepared: The job.
        again: Called with calls that the job has not served when it ends. Those that it leaves there get its error.
    """

    def __init__(self, prepared: Prepared, again: Callable[[list[SessionCallJob[Any]]], None]) -> None:
        self.spec = prepared.job
        self._version = prepared.ready.interpreter.version
        self._session = prepared.session
        self._again = again
        self._count = 0
        self._open: set[SessionCallJob[Any]] = set()
        self._sending: set[Reply[bool]] = set()
        self._unsent: set[str] = set()
        self._sends_skipped = False
        self._unheld: set[int] = set()  # actors without a local object, which may live on the host
        self._abandoned: set[int] = set()  # actors whose local object is gone; some of them are closed
        self._settling = threading.Lock()
        self.actors = Actors(prepared.job.serving.workers if prepared.job.serving else 1)
        self.job, self._tracker = send_call(prepared)
        self._stream = CallStream(prepared.session, self.job.folder, self.actors.end)
        self._stream.open()
        idle_s = prepared.job.serving.idle_s if prepared.job.serving else 0.0
        idle = f"{idle_s / 60:g} min" if idle_s >= 60 else f"{idle_s:g} s"
        job_display.remember_going(self.job, f"it ends after {idle} without a call; to end it now: clusterfn cancel ID")
        self.job.listen(self._on_job_change)
        self.job.add_done_callback(self._over)

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
        """Send one call; copy large buffers if the caller does not wait for it, as he may change them.

        Raises:
            NotEnded: An actor is leaving the worker that the call needs.
        """
        name = name or str(attribute(fn, "__name__", "function"))
        if of_actor is None or not of_actor.actor:
            self._check_room(name)
        quick = of_actor is not None and is_packed_at_once(args, kwargs)
        with job_display.nothing_runs(), contextlib.nullcontext() if quick else job_display.preparing(name):
            place = Place(self.spec.host.name, self.spec.root, in_session=True)
            payload = payloads.pack(fn, args, kwargs, None if self._version == CALLER else self._version, place=place)
            payload = payload if follow else payload.with_own_buffers()
        tell_left_out(payload)
        tell_decisions(payload, submit.is_in_place(self.spec.host, self.spec.interpreter))
        tracker = self._next(job_name(name), follow, of_actor)
        call: SessionCallJob[R] = SessionCallJob(self.job, payload, tracker)
        call.given = submit.given_paths(self.spec.root, payload)
        self._put(call, payload)
        return call

    def _check_room(self, name: str) -> None:
        try:
            self.actors.check_room(name)
        except ConfigError:
            for call in list(self._open):
                of_actor = call.tracker.of_actor
                if of_actor is not None and (of_actor.closes or call.is_stopping):
                    raise NotEnded(call, self.actors.name_of(of_actor.actor or call.tracker.number)) from None
            raise

    def take_over(self, call: SessionCallJob[Any]) -> None:
        """Send a call of another session to this one, or tell it that actors have taken all workers meanwhile."""
        payload = call.payload
        if payload is None:
            return
        try:
            self.actors.check_room(call.name)
        except ConfigError as no_room:
            call.on_refused(no_room)
            return
        call.move(self.job, self._next(call.name, call.tracker.live, call.tracker.of_actor))
        self._put(call, payload)

    def _next(self, name: str, follow: bool, of_actor: ActorCall | None) -> SessionCallTracker:
        self._count += 1
        return SessionCallTracker(self._tracker, self._count, name, follow, self._stream, of_actor)

    def _put(self, call: SessionCallJob[Any], payload: Payload) -> None:
        self._open.add(call)
        if call.tracker.of_actor is not None:
            self._note_actor(call, call.tracker.of_actor)
        call.add_done_callback(self._open.discard)  # after what it does to its actor is noted
        try:
            self._send(call, payload)
        except BaseException:  # such as Ctrl-C: the caller has no handle of the call
            self._open.discard(call)
            if call.tracker.of_actor is not None:
                self._not_sent(call, call.tracker.of_actor)
            self._skip_number(call)
            raise
        if self.job.done():  # while the call was packed or sent: it was not among those that `_over` moved on
            self._over(self.job)

    def _note_actor(self, call: SessionCallJob[Any], of_actor: ActorCall) -> None:
        """Take note of what a call does to its actor: now, and when it has ended."""
        number = of_actor.actor or call.tracker.number
        if not of_actor.actor:
            self.actors.begin(number, of_actor.name)
        if of_actor.closes:
            self.actors.close(number)

        def ended(_: concurrent.futures.Future[Any]) -> None:
            if call.held is not self.job:  # it was moved to another session
                return
            is_known = call.cancelled() or call.tracker.has_outcome  # else the host may do all the same what it says
            if of_actor.closes and not is_known:
                self._not_closed(call, number)
            elif of_actor.closes or call.actor_gone:
                self.actors.end(number, call.actor_gone)
            elif not of_actor.actor and (call.cancelled() or call.exception() is not None):
                self.actors.end(number, "it could not be constructed")
                if not is_known:
                    self._unheld.add(number)

        call.add_done_callback(ended)

    def _not_sent(self, call: SessionCallJob[Any], of_actor: ActorCall) -> None:
        """Undo what was noted of a call whose sending was interrupted. It may have left this machine."""
        if of_actor.closes:
            self._not_closed(call, of_actor.actor)
        elif not of_actor.actor:
            self.actors.end(call.tracker.number, "it was not sent")
            self._unheld.add(call.tracker.number)

    def _not_closed(self, call: SessionCallJob[Any], number: int) -> None:
        """Let an actor be closed again: by its local object, or with the next call if there is none."""
        if call.tracker.live:
            self.actors.reopen(number)
        else:
            self.actors.end(number, "")
            self._unheld.add(number)

    def close_unheld(self) -> None:
        """Have the host close actors without a local object: each keeps a worker from the calls that come now."""
        for number in sorted(self._unheld):
            self._unheld.discard(number)  # before it is sent: where that fails, it is added again
            self._close_actor(number)
        for number in sorted(self._abandoned):
            self._abandoned.discard(number)
            if not self.actors.is_gone(number):
                self._close_actor(number)

    def _close_actor(self, number: int) -> None:
        self.send(type(None), (), {}, "close", False, ActorCall(number, "close", closes=True))

    def abandon(self, number: int) -> None:
        """Have an actor closed before the next call that needs a worker. The garbage collector calls this: no lock."""
        self._abandoned.add(number)

    def _send(self, call: SessionCallJob[Any], payload: Payload) -> None:
        submit.await_room(self._session)
        self._await_folder()
        self._send_skipped()
        needs = submit.send_contents(self._session, payload)
        facts = {"sys_path": list(submit.module_folders(self.spec, payload)), **call.tracker.facts}
        streamed = StreamedSessionCall(call, lambda: self._send_files(call, payload, facts, needs._replace(before=[])))
        if needs.before or not streamed.send(self._stream, payload.data, facts):
            self._send_files(call, payload, facts, needs)
            call.tracker.follow(call, 1)

    def _send_files(
        self, call: SessionCallJob[Any], payload: Payload, facts: Mapping[str, Any], needs: submit.Uploads
    ) -> None:
        """Send the folder of a call; the host ignores it if it has that already."""
        files = [
            TreeFile(layout.PAYLOAD, payload.data, _PRIVATE),
            TreeFile(layout.CALL, json.dumps(facts).encode(), _PRIVATE),
        ]
        sent = submit.send_folder(self._session, call.tracker, call, files, needs, durable=False)
        self._sending.add(sent)
        sent.add_done_callback(self._sending.discard)
        sent.add_done_callback(lambda reply: self._refused(call, reply))
        if call.tracker.sending is not None:
            call.tracker.sending.on_dropped = lambda: self._refuse(call, concurrent.futures.CancelledError())

    def _await_folder(self) -> None:
        """Wait for the session's folder, which appears as a whole: nothing may be made below it before."""
        laid_out = self._tracker.laid_out
        if laid_out is not None:
            laid_out.exception(_TIMEOUT_S)
            self._tracker.laid_out = None

    def _refused(self, call: SessionCallJob[Any], reply: Reply[bool]) -> None:
        error = reply.exception()
        # What was cancelled here may have arrived all the same, and run: whoever stops its sending finds that out.
        if error is not None and not isinstance(error, concurrent.futures.CancelledError):
            self._refuse(call, error)

    def _refuse(self, call: SessionCallJob[Any], error: BaseException) -> None:
        if not self.job.done():
            self._skip_number(call)
            call.on_refused(submit.refusal_of(error, call.host, call.tracker.sending, "call"))

    def _skip_number(self, call: SessionCallJob[Any]) -> None:
        """Have the session skip the call's number: calls are served in order."""
        self._unsent.add(call.tracker.taken)
        self._send_skipped()

    def _send_skipped(self) -> None:
        """Send the numbers to skip; again with the next call if the host could not write them, as on a full disk."""
        known = frozenset(self._unsent)
        unsent, laid_out = sorted(known)[:_PATHS], self._tracker.laid_out
        if unsent and not self._sends_skipped:
            after = [laid_out] if laid_out else []
            said = self._session.connection.run(["/bin/sh", "-c", _SKIP, "sh", *unsent], after=after)
            self._sends_skipped = True
            said.add_done_callback(lambda reply: self._on_skipped(reply, unsent, known))

    def _on_skipped(self, reply: Reply[Completed], unsent: Sequence[str], known: frozenset[str]) -> None:
        self._sends_skipped = False
        if reply.exception() is not None or self.job.done():
            return
        if reply.result(0).rc == 0:
            self._unsent.difference_update(unsent)
        elif self._unsent <= known:  # none came meanwhile, and the host would refuse the same ones again
            return
        self._send_skipped()

    def _on_job_change(self, kind: str, _: object) -> None:
        if kind != "state" or self.job.state not in (PENDING, STARTING, RUNNING, SUSPENDED):
            return
        reason = "" if self.job.state == RUNNING else f"its session is {self.job.status}"
        for call in list(self._open):
            if call.state == PENDING and call.reason != reason:
                call.on_state(PENDING, reason)

    # its end

    def tell_of_error(self, error: Exception) -> None:
        """Say that the `with` block has raised an error, which is not seen before its calls have ended."""
        count = sum(not call.done() for call in list(self._open))
        if count:
            calls = "1 call" if count == 1 else f"{count} calls"
            console.warn(
                f"{type(error).__name__} in the with block of the session: waiting for its {calls}"
                f" (to end them: clusterfn cancel {self.job.id[:SHORT]})"
            )

    def close(self, wait: bool, cancel_futures: bool) -> None:
        """End the job once the calls have ended."""
        calls = list(self._open)
        try:
            if cancel_futures:
                _withdraw(calls)
                _tell_withdrawn(calls)
        finally:  # such as of Ctrl-C: no later call would close it
            if not self.job.done() and (calls or not self.job.cancel()):
                self._send_close(wait)
        if wait:
            self.await_end(calls)

    def await_end(self, calls: Sequence[SessionCallJob[Any]] = ()) -> None:
        """Wait until these calls, and the session itself, have ended."""

        def describe() -> str:
            left = sum(not call.done() for call in calls)
            which = f"{left} call{'' if left == 1 else 's'} of the session" if left else "the session"
            return f"waiting for {which} on {self.job.host} to end: {self.job.id} is {self.job.status_since}"

        spoken_wait.wait_for([*calls, self.job], describe)

    def _send_close(self, wait: bool) -> None:
        self._await_folder()
        self._stream.await_taken(None, _TIMEOUT_S)
        sending = list(self._sending)
        put = self._close_file(after=sending)  # a large call takes time to arrive
        if sending:  # if the host refuses one of them, the session closes all the same
            put.add_done_callback(self._close_despite_failure)
        elif wait:
            put.result(_TIMEOUT_S)

    def _close_despite_failure(self, put: Reply[bool]) -> None:
        """Close although the host has refused what was sent before."""
        if put.exception() is not None:
            self._close_file()

    def _close_file(self, after: Sequence[Reply[Any]] = ()) -> Reply[bool]:
        place = posixpath.join(self.job.folder, layout.CALLS, layout.CLOSE)
        put = self._session.connection.put(place, b"", sync=False, after=after)
        put.add_done_callback(self._closed)
        exit_flush.await_at_exit(put)
        return put

    def _closed(self, put: Reply[bool]) -> None:
        """Set what is printed if the program ends before the job."""
        if put.exception() is None:
            job_display.forget_going(self.job)
            if self._open:
                job_display.remember_going(
                    self.job, "it is closed, and ends with its last call; to end it now: clusterfn cancel ID"
                )

    def _over(self, _: concurrent.futures.Future[Any]) -> None:
        """Fail the calls that were not served, or move them to the next session, in a thread: nothing may wait here."""
        self._stream.close()
        exit_flush.run_in_thread(self._settle, "clusterfn-session-over")

    def _settle(self) -> None:
        if self.job.state == UNKNOWN:  # the connection has ended: each call gets that error itself
            return
        unsettled: Collection[SessionCallJob[Any]] = self._open
        try:
            unsettled = moved = self._fail_lost()
            if moved:
                self._again(moved)  # which takes those out that are sent
        except Exception as error:  # noqa: BLE001 - its thread's outermost frame: those who wait must get an error
            refused = error if isinstance(error, ClusterfnError) else ClusterfnError(repr(error), stage="session")
            for call in list(unsettled):
                call.on_refused(refused)

    def _fail_lost(self) -> list[SessionCallJob[Any]]:
        """Fail the calls that are lost with the job; return those that another session can serve."""
        with self._settling:  # a call may be moved once only
            calls = sorted(self._open, key=lambda call: call.tracker.number)  # they are moved in the order of sending
            calls = [call for call in calls if not call.done()]
            left = self._without([call.tracker.outcome for call in calls], calls)
            unserved = self._without([call.tracker.taken for call in left], left)
            moved = [] if self.job.state != RETURNED else [
                call for call in unserved if call.tracker.of_actor is None or not call.tracker.of_actor.actor
            ]  # fmt: skip
            self._open.difference_update(moved)
        for call in left:
            if call not in moved:
                call.on_refused(self._lost(call, has_begun=call not in unserved))
        return moved

    def _without(self, paths: Sequence[str], calls: Sequence[SessionCallJob[Any]]) -> list[SessionCallJob[Any]]:
        """Return the calls whose path is not on the host."""
        parts = [paths[first : first + _PATHS] for first in range(0, len(paths), _PATHS)]
        asked = [self._session.connection.have(part) for part in parts]
        found = itertools.chain.from_iterable(reply.result() for reply in asked)
        return [call for call, is_there in zip(calls, found) if not is_there]

    def _lost(self, call: SessionCallJob[Any], has_begun: bool) -> ClusterfnError:
        """Make the error of this call from the end of its session."""
        if self.job.state == RETURNED and call.tracker.of_actor is not None:
            return actor_lost(call.name, f"its session has ended ({self.why_over})", call.host, call.id)
        error = None if self.job.cancelled() else self.job.exception(0)
        kind = type(error) if isinstance(error, ClusterfnError) else WorkerLost
        facts: dict[str, Any] = {name: getattr(error, name, None) for name in ("stage", "evidence", "hint", "log")}
        message = f"the session of the call has ended: {self.why_over}"
        if not has_begun:
            message = f"the call had not begun when its session ended: {self.why_over}"
            facts["stage"] = "queue"
            if kind is not Unsatisfiable:  # whose own hint says what to ask for
                facts["hint"] = "call again: nothing of it has run"
        return kind(message, host=call.host, job=call.id, **facts)


def _tell_withdrawn(calls: Sequence[SessionCallJob[Any]]) -> None:
    withdrawn, going = sum(call.cancelled() for call in calls), sum(not call.done() for call in calls)
    if withdrawn:
        rest = f"; {going} that had begun will run to the end" if going else ""
        had = "call of the session had" if withdrawn == 1 else "calls of the session had"
        console.tell(f"{withdrawn} {had} not begun and will not run{rest}")


def _withdraw(calls: Sequence[SessionCallJob[Any]]) -> None:
    """Keep calls that have not started from it: many at once, as each waits for its host."""
    left = collections.deque(calls)

    def withdraw(ended: concurrent.futures.Future[None]) -> None:
        try:
            while left:
                with contextlib.suppress(IndexError):  # another thread has taken the last one
                    left.popleft().cancel()
            ended.set_result(None)
        except BaseException as error:  # noqa: BLE001 - its thread's outermost frame: the caller gets it
            left.clear()
            ended.set_exception(error)

    # An executor starts no threads while the interpreter exits, and after Ctrl-C the exit would wait for its threads.
    threads = [concurrent.futures.Future[None]() for _ in calls[:_WITHDRAWN_AT_ONCE]]
    for ended in threads:
        exit_flush.run_in_thread(functools.partial(withdraw, ended), "clusterfn-withdraw")
    for ended in threads:
        ended.result()
