"""The job of a session, and the calls that it serves: sent in order, told what became of it, handed on if it had ended.

What the caller's thread does may wait for the host; what hears of answers and states runs on the connection's reader
thread, and must not. Made by `sessions`.
"""

from __future__ import annotations

import concurrent.futures
import json
import posixpath
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from clusterfn.bridge import layout
from clusterfn.calls import dispatch, job_display, submit
from clusterfn.calls import payload as payloads
from clusterfn.calls.job import PENDING, RETURNED, STARTING, UNKNOWN
from clusterfn.calls.job_tracker import Tracker
from clusterfn.calls.payload import Payload
from clusterfn.calls.session_call import Call, CallTracker
from clusterfn.errors import Cancelled, ClusterfnError, WorkerLost
from clusterfn.hosts import exit_flush
from clusterfn.hosts.connection import Completed, Reply, TreeFile
from clusterfn.hosts.host_state import CALLER
from clusterfn.hosts.transfer import Sending

R = TypeVar("R")
_TIMEOUT_S = 60.0
_PRIVATE = 0o600


class Holding:
    """One job that serves calls, and its calls."""

    def __init__(self, prepared: dispatch.Prepared, again: Callable[[list[Call[Any]]], None]) -> None:
        self.spec = prepared.job
        self._version = prepared.ready.interpreter.version
        self._session = prepared.session
        self._again = again
        self._count = 0
        self._open: set[Call[Any]] = set()
        self._sending: set[Reply[bool]] = set()
        self._unsent: set[str] = set()
        self._settling = threading.Lock()
        self.job = dispatch.start(prepared)
        idle_s = prepared.job.serving.idle_s if prepared.job.serving else 0.0
        job_display.remember_going(
            self.job, f"it lets go after {_shown(idle_s)} without a call; clusterfn cancel ID: now"
        )
        self._tracker: Tracker = self.job._tracker
        self.job.listen(self._heard)
        self.job.add_done_callback(self._over)

    @property
    def why_over(self) -> str:
        """Why it ended, in words."""
        error = self.job.exception(0)
        if error is not None:
            return str(getattr(error, "message", error))
        return "nobody called" if self.job.result(0)["why"] == "idle" else "it was closed"

    def send(
        self, fn: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str | None, follow: bool
    ) -> Call[R]:
        """Send one call."""
        with job_display.nothing_runs(), job_display.preparing(name or str(getattr(fn, "__name__", "function"))):
            payload = payloads.pack(fn, args, kwargs, None if self._version == CALLER else self._version)
        dispatch.tell_left_out(payload)
        tracker = self._next(dispatch.job_name(name or str(getattr(fn, "__name__", "function"))), follow)
        call: Call[R] = Call(self.job, payload, tracker)
        call.given = submit.given_paths(self.spec.root, payload)
        self._put(call, payload)
        return call

    def take_over(self, call: Call[Any]) -> None:
        """Send a call of another session here."""
        payload = call.payload
        if payload is not None:
            call.move(self.job, self._next(call.name, call.tracker.live))
            self._put(call, payload)

    def _next(self, name: str, follow: bool) -> CallTracker:
        self._count += 1
        return CallTracker(self._tracker, self._count, name, follow)

    def _put(self, call: Call[Any], payload: Payload) -> None:
        self._open.add(call)
        call.add_done_callback(self._open.discard)
        try:
            self._send(call, payload)
        except BaseException:  # such as Ctrl-C: nobody has the call
            self._open.discard(call)
            self._never_comes(call)
            raise
        if self.job.done():  # while the call was packed or sent: it was not among those that `_over` handed on
            self._over(self.job)

    def _send(self, call: Call[Any], payload: Payload) -> None:
        self._await_folder()
        self._say_what_never_comes()
        before = submit.contents(self._session, payload)
        sources = payload.sources
        own = {"sys_path": [layout.sources_dir(self.spec.root, sources.digest)] if sources else []}
        files = [
            TreeFile(layout.PAYLOAD, payload.data, _PRIVATE),
            TreeFile(layout.CALL, json.dumps(own).encode(), _PRIVATE),
        ]
        sent = self._session.connection.put_tree(call.folder, files, sync=False, after=before)
        call.tracker.sending = Sending([*before, sent])
        call.on_transfer(call.tracker.sending)
        self._sending.add(sent)
        sent.add_done_callback(self._sending.discard)
        sent.add_done_callback(lambda reply: self._refused(call, reply))
        call.tracker.follow(call, 1)

    def _await_folder(self) -> None:
        """The session's folder appears as a whole: nothing may be made below it before. A refusal ends the session."""
        laid_out = self._tracker.laid_out
        if laid_out is not None:
            laid_out.exception(_TIMEOUT_S)
            self._tracker.laid_out = None

    def _refused(self, call: Call[Any], reply: Reply[bool]) -> None:
        error = reply.exception()
        if error is not None and not self.job.done():
            self._never_comes(call)
            if call.tracker.sending is not None and call.tracker.sending.dropped:
                error = Cancelled(f"the call was stopped while it was sent: nothing of it ran on {call.host}")
            call.on_refused(error if isinstance(error, ClusterfnError) else ClusterfnError(str(error)))

    def _never_comes(self, call: Call[Any]) -> None:
        """The session waits for its number no longer: calls are served in order."""
        self._unsent.add(call.tracker.taken)
        self._say_what_never_comes()

    def _say_what_never_comes(self) -> None:
        """Said again with the next call where the host cannot take it, as its disk is full."""
        unsent, laid_out = sorted(self._unsent), self._tracker.laid_out
        if unsent:
            after = [laid_out] if laid_out else []
            said = self._session.connection.run(["mkdir", "-p", "--", *unsent], after=after)
            said.add_done_callback(lambda reply: self._heard_what_never_comes(reply, unsent))

    def _heard_what_never_comes(self, reply: Reply[Completed], unsent: Sequence[str]) -> None:
        if reply.exception() is None and reply.result(0).rc == 0:
            self._unsent.difference_update(unsent)

    def _heard(self, kind: str, _: object) -> None:
        if kind == "state" and self.job.state in (PENDING, STARTING):
            for call in list(self._open):
                call.on_state(PENDING, f"the session is {self.job.status}")

    # its end

    def close(self, wait: bool, cancel_futures: bool) -> None:
        """Let go once the calls have ended."""
        calls = list(self._open)
        for call in calls if cancel_futures else ():
            call.cancel()
        if not self.job.done() and (calls or not self.job.cancel()):
            self._put_close(wait)
        if wait:
            concurrent.futures.wait([*calls, self.job])

    def _put_close(self, wait: bool) -> None:
        """It closes once it has all that was sent: a large call takes its time on the way."""
        self._await_folder()
        sending = list(self._sending)
        if sending:
            put = self._close_file(after=sending)
            put.add_done_callback(self._close_all_the_same)
        else:
            put = self._close_file()
            if wait:
                put.result(_TIMEOUT_S)

    def _close_all_the_same(self, put: Reply[bool]) -> None:
        """The host has refused what it was to come after."""
        if put.exception() is not None:
            self._close_file()

    def _close_file(self, after: Sequence[Reply[Any]] = ()) -> Reply[bool]:
        place = posixpath.join(self.job.folder, layout.CALLS, layout.CLOSE)
        put = self._session.connection.put(place, b"", sync=False, after=after)
        put.add_done_callback(self._closed)
        exit_flush.await_at_exit(put)
        return put

    def _closed(self, put: Reply[bool]) -> None:
        """What is told to whoever leaves before it has ended."""
        if put.exception() is None:
            job_display.forget_going(self.job)
            if self._open:
                job_display.remember_going(
                    self.job, "it is closed, and lets go once its calls have ended; clusterfn cancel ID: now"
                )

    def _over(self, _: concurrent.futures.Future[Any]) -> None:
        """Who has not been served is told why, or goes to the next session. Called where nothing may wait."""
        exit_flush.apart(self._settle, "clusterfn-session-over")

    def _settle(self) -> None:
        try:
            self._settle_calls()
        except Exception as error:  # noqa: BLE001 - its thread's outermost frame: whoever waits must hear of it
            refused = error if isinstance(error, ClusterfnError) else ClusterfnError(repr(error), stage="session")
            for call in list(self._open):
                call.on_refused(refused)

    def _settle_calls(self) -> None:
        if self.job.state == UNKNOWN:  # the connection has ended: each call hears that itself
            return
        with self._settling:  # a call may be handed on once only
            left = [call for call in list(self._open) if not self._has_ended(call)]
            unserved = [call for call in left if self.job.state == RETURNED and not self._was_taken(call)]
            self._open.difference_update(unserved)
        for call in left:
            if call not in unserved:
                call.on_refused(self._lost(call))
        if unserved:
            self._again(unserved)

    def _has_ended(self, call: Call[Any]) -> bool:
        """Its outcome is there, and on its way."""
        return call.done() or self._is_there(call.tracker.outcome)

    def _was_taken(self, call: Call[Any]) -> bool:
        return self._is_there(call.tracker.taken)

    def _is_there(self, path: str) -> bool:
        return self._session.connection.have([path]).result()[0]

    def _lost(self, call: Call[Any]) -> ClusterfnError:
        """The session's own end, as this call's."""
        error = None if self.job.cancelled() else self.job.exception(0)
        kind = type(error) if isinstance(error, ClusterfnError) else WorkerLost
        facts: dict[str, Any] = {name: getattr(error, name, None) for name in ("stage", "evidence", "hint", "log")}
        message = f"the session of the call has ended: {self.why_over}"
        return kind(message, host=call.host, job=call.id, **facts)


def _shown(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
