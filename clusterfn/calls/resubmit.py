"""Submits to a scheduler, and again what it refuses for now because it holds as many jobs as it may.

Such submissions wait in one line for each host, in their order: the first is sent again, less and less often, and each
that is taken lets the next one go at once. They wait in this program, so they end with it. Nothing here waits:
callbacks run on the connection's reader thread, and a timer sends what waits.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from clusterfn.bridge import layout
from clusterfn.calls import console
from clusterfn.errors import ClusterfnError, HostError, SubmitError, Unsatisfiable
from clusterfn.hosts.connection import Reply
from clusterfn.hosts.exit_flush import await_at_exit
from clusterfn.scheduler.base import Answer, Submission

if TYPE_CHECKING:
    from clusterfn.hosts.host_state import HostState

_told: set[tuple[str, str]] = set()  # of which host, and what: a site may say the same about each job
_FIRST_S, _LONGEST_S, _SLOWING = 2.0, 60.0, 2.0  # until the first is sent again; the scheduler serves everybody
_RENEW_S = layout.REFUSED_FOR_S / 5
_NOTES_AT_ONCE = 500  # words of one command


class SubmissionListener(Protocol):
    """What a submission reports to: one job, or elements of a group that are started together."""

    def on_started(self, scheduler_id: str, doubt: SubmitError | None) -> None:
        """Take the scheduler's id; with `doubt` its answer may mean that the job was not started."""

    def on_not_started(self, error: BaseException) -> None:
        """Take the error: it was refused, or not all that it needs has arrived."""

    def on_refused_for_now(self, reason: str) -> None:
        """Take why it waits in this program; it is called again when that changes."""

    @property
    def note(self) -> str:
        """The file on the host by which others know that it waits in this program; "" for none."""
        return ""

    def split(self, submission: PendingSubmission) -> PendingSubmission | None:
        """Let it ask for less, and return what asks for the rest; None if it cannot be less."""
        return None

    def is_wanted_now(self, submission: PendingSubmission) -> bool:
        """Whether to submit it now, and not later."""
        return True

    def on_queued(self) -> None:
        """Take note that it waits in the host's own queue."""

    def on_script_ended(self) -> None:
        """Take note that its script has ended."""


class PendingSubmission(Reply[None]):
    """One request to a scheduler, until it is taken or refused for good: then it has its answer.

    Args:
        after: What must have succeeded before.
        on: What it reports to.

    Attributes:
        request: What is sent; it may change between two tries.
        is_withdrawn: Whether it is not to be sent again.
    """

    def __init__(
        self, session: HostState, request: Submission, after: Sequence[Reply[Any]], on: SubmissionListener
    ) -> None:
        super().__init__(self.withdraw)
        self.request = request
        self.on = on
        self.is_withdrawn = False
        self.began = time.monotonic()
        self._session = session
        self._after: Sequence[Reply[Any]] = after
        self._line = line_of(session)

    @property
    def is_waiting(self) -> bool:
        """Whether the scheduler does not take it for now, and it is not being sent again at this moment."""
        return self._line.has(self)

    def start(self) -> None:
        """Send it, or let it wait behind those that wait."""
        if not self._line.takes(self):
            self.send()

    def send(self) -> None:
        """Send it; it has arrived once the host has answered."""
        request = self.request
        try:
            sent = self._session.connection.run(
                request.argv, cwd=request.cwd, unset=request.unset, timeout_s=request.timeout_s, after=self._after,
                forks=request.forks, stop_at=request.stop_at,
            )  # fmt: skip
        except ClusterfnError as error:  # the connection was closed
            self.refuse(error)
            return
        self.id = sent.id
        sent.add_done_callback(self._on_answer)
        await_at_exit(sent)  # and not this: what waits here is waited for with its reason (`finish_submitting`)
        self._sent = sent

    def withdraw(self) -> None:
        """Do not send it again; wait for its answer to know whether the scheduler has it."""
        self.is_withdrawn = True
        if self._line.leave(self):
            self.resolve(None)

    def drop(self) -> None:
        """End it if it waits: what it needs will not arrive."""
        if self._line.leave(self):
            self.refuse(concurrent.futures.CancelledError())

    def refuse(self, error: BaseException) -> None:
        """End it with this error."""
        self._end(lambda: self.on.on_not_started(error))

    def _on_answer(self, reply: Reply[Any]) -> None:
        scheduler = self._session.scheduler
        try:
            answer = _answer(reply)
        except (ClusterfnError, concurrent.futures.CancelledError) as error:
            self.refuse(error)
            return
        full = scheduler.refused_for_now(answer)
        if full and self.is_withdrawn:
            self._end(lambda: None)
            return
        if full:
            self._line.refused(self, f"not in the queue of {scheduler.title} yet; {full}")
            return
        other = scheduler.again(self.request, answer)
        if other is not None and self.is_withdrawn:
            self._end(lambda: None)
            return
        if other is not None:
            self.request, self._after = other, ()
            self.send()
            return
        doubt = None
        try:
            scheduler_id = scheduler.submitted(answer)
            self._tell(scheduler.notes(answer))
        except (SubmitError, Unsatisfiable) as refusal:
            if not isinstance(refusal, SubmitError) or not scheduler.ambiguous(answer):
                self.refuse(refusal)
                return
            scheduler_id, doubt = "", refusal
        self._end(lambda: self.on.on_started(scheduler_id, doubt))

    def renew(self, notes: Sequence[str]) -> None:
        """Renew the dates of these notes on its host: others believe them only for a while."""
        with contextlib.suppress(ClusterfnError):  # the connection was closed
            self._session.connection.run(["touch", "-c", "--", *notes])

    def _tell(self, notes: Iterable[str]) -> None:
        host = self._session.host.name
        for note in notes:
            if (host, note) not in _told:
                _told.add((host, note))
                console.tell(note)

    def _end(self, report: Callable[[], None]) -> None:
        self._after = ()
        try:
            report()
        finally:  # whatever it raises: others wait behind this one
            self._line.ended(self)
            self.resolve(None)


def _answer(reply: Reply[Any]) -> Answer:
    try:
        ran = reply.result(0)
    except HostError as error:
        if error.kind != "timeout":
            raise
        return Answer(None, "", error.message)  # killed because it took too long: it may have submitted
    return Answer(ran.rc, ran.out.decode("utf-8", "replace"), ran.err.decode("utf-8", "replace"))


class SubmissionLine:
    """What one host's scheduler does not take for now.

    Args:
        limit_s: For how long each may wait (`queue_timeout:` of the host); None for ever.
    """

    def __init__(self, host: str, limit_s: float | None) -> None:
        self._host = host
        self._limit_s = limit_s
        self._lock = threading.RLock()
        self._waiting: collections.deque[PendingSubmission] = collections.deque()
        self._tried: PendingSubmission | None = None  # it was first, and is being sent again
        self._timer: threading.Timer | None = None
        self._pause_s, self._due = _FIRST_S, 0.0
        self._reason = ""
        self._renewed = time.monotonic()

    def takes(self, submission: PendingSubmission) -> bool:
        """Let it wait if others do; false if it may be sent at once."""
        with self._lock:
            if self._tried is None and not self._waiting:
                return False
            self._waiting.append(submission)
        submission.on.on_refused_for_now(self._reason)
        return True

    def has(self, submission: PendingSubmission) -> bool:
        """Whether it waits."""
        with self._lock:
            return submission in self._waiting

    def leave(self, submission: PendingSubmission) -> bool:
        """Take it out; false if it is being sent, or was not here."""
        with self._lock:
            if submission not in self._waiting:
                return False
            self._waiting.remove(submission)
            return True

    def refused(self, submission: PendingSubmission, reason: str) -> None:
        """Keep one that was refused: at its place, or behind the others if this was its first try."""
        with self._lock:
            again = submission is self._tried or (self._tried is None and not self._waiting)
            rest = submission.on.split(submission)
            both = [submission] if rest is None else [submission, rest]
            if again:
                self._tried = None
                self._waiting.extendleft(reversed(both))
            else:
                self._waiting.extend(both)
            told = list(self._waiting) if reason != self._reason else both
            self._reason = reason
        for each in told:
            each.on.on_refused_for_now(reason)
        if again and rest is not None:  # less may fit
            self._send_next()
        else:
            self._send_later()

    def ended(self, submission: PendingSubmission) -> None:
        """Take note that one was taken, or refused for good: if it was the first here, the next may be taken too."""
        with self._lock:
            if submission is not self._tried:
                return
            self._tried, self._pause_s = None, _FIRST_S
        self._send_later(0.0)

    def _send_later(self, pause_s: float | None = None) -> None:
        with self._lock:
            if self._timer is not None or self._tried is not None or not self._waiting:
                return
            if pause_s is None:
                pause_s, self._pause_s = self._pause_s, min(_LONGEST_S, self._pause_s * _SLOWING)
            if self._limit_s is not None:
                oldest = min(each.began for each in self._waiting)
                pause_s = min(pause_s, max(0.0, oldest + self._limit_s - time.monotonic()))
            self._due = time.monotonic() + pause_s
            self._timer = threading.Timer(pause_s, self._on_time)
            self._timer.daemon = True
            try:
                self._timer.start()
            except RuntimeError:  # the interpreter is exiting, and starts no more threads: `send_due` sends it
                self._timer = None

    def send_due(self) -> None:
        """Send what is due, where no timer does."""
        with self._lock:
            if self._timer is not None or self._tried is not None or time.monotonic() < self._due:
                return
        self._on_time()

    def _on_time(self) -> None:
        with self._lock:
            self._timer = None
        self._renew_notes()
        self._send_next()

    def _renew_notes(self) -> None:
        """Say again, now and then, that those that wait here will be submitted."""
        if time.monotonic() - self._renewed < _RENEW_S:
            return
        self._renewed = time.monotonic()
        with self._lock:
            waiting = list(self._waiting)
        notes = sorted({each.on.note for each in waiting} - {""})
        for first in range(0, len(notes), _NOTES_AT_ONCE):
            waiting[0].renew(notes[first : first + _NOTES_AT_ONCE])

    def _send_next(self) -> None:
        """Send the first that is wanted now, once those have ended that have waited for too long."""
        for each in self._take_late():
            each.refuse(self._too_late())
        with self._lock:
            if self._tried is not None:
                return
            found = next((each for each in self._waiting if each.on.is_wanted_now(each)), None)
            if found is not None:
                self._waiting.remove(found)
                self._tried = found
        if found is None:
            self._send_later()
        else:
            found.send()

    def _take_late(self) -> list[PendingSubmission]:
        if self._limit_s is None:
            return []
        with self._lock:
            late = [each for each in self._waiting if time.monotonic() >= each.began + (self._limit_s or 0.0)]
            for each in late:
                self._waiting.remove(each)
        return late

    def _too_late(self) -> Unsatisfiable:
        return Unsatisfiable(
            f"the job has waited longer than the host's queue_timeout, {self._limit_s:g} s ({self._reason})",
            host=self._host, stage="submit", hint="try again later, or allow a longer queue_timeout",
        )  # fmt: skip


_lines: weakref.WeakKeyDictionary[HostState, SubmissionLine] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def send_due() -> None:
    """Send what is due while the interpreter exits."""
    for line in list(_lines.values()):
        line.send_due()


def line_of(session: HostState) -> SubmissionLine:
    """Return the line of a host."""
    with _making:
        return _lines.setdefault(session, SubmissionLine(session.host.name, session.host.queue_timeout_s))
