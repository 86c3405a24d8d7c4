"""Submits to a scheduler, and again what it refuses for now because it holds as many jobs as it may.

Such submissions wait in one line for each host, in their order: the first is sent again, less and less often, and each
that is taken lets the next one go at once. They wait in this program, so they end with it. All of this runs in the loop
of `clusterfn.hosts.loop`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar

from clusterfn.bridge import layout
from clusterfn.display import console
from clusterfn.errors import ClusterfnError, HostError, SubmitError
from clusterfn.hosts import loop
from clusterfn.hosts.connection import Reply
from clusterfn.hosts.exit_flush import await_at_exit
from clusterfn.scheduler.base import Answer, Submission

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Completed
    from clusterfn.hosts.host_state import HostState

T = TypeVar("T")
_log = logging.getLogger("clusterfn")
# The pause before a job is submitted again grows, because the scheduler serves other users too.
_FIRST_S, _LONGEST_S, _SLOWING = 2.0, 60.0, 2.0
_RENEW_S = layout.REFUSED_FOR_S / 5
# The notes are the words of one command, whose length is limited.
_NOTES_AT_ONCE = 500


class Started(NamedTuple):
    """What a scheduler has taken: its id there, "" if that is not known; or an answer that leaves it in doubt."""

    scheduler_id: str
    doubt: SubmitError | None = None


class WaitingJob:
    """A job, or elements that start together, and what its submission tells it."""

    def refused_for_now(self, reason: str) -> None:
        """Take why it waits in this program; called again when that changes."""

    def taken(self, started: Started) -> None:
        """Take note that it was started, before another one is asked whether it is wanted now."""

    def refused(self, error: BaseException) -> None:
        """Take why it was not started."""

    def queued(self) -> None:
        """Take note that it waits in the queue of its host."""

    async def script_ended(self) -> None:
        """Take note that its script has ended, on a host without a scheduler."""

    def split(self, submission: PendingSubmission) -> PendingSubmission | None:
        """Let it ask for less, and return what asks for the rest; None if it cannot be less."""
        return None

    def is_wanted_now(self, submission: PendingSubmission) -> bool:
        """Whether to submit it now, and not later."""
        return True


class PendingSubmission(Reply[Optional[Started]]):
    """One request to a scheduler, until it is taken, withdrawn (then its answer is None), or refused for good.

    Args:
        after: What must have succeeded before.
        job: What it submits.
        note: The file on the host by which others know that it waits in this program, if it exists.

    Attributes:
        request: What is sent; it may change between two tries.
    """

    def __init__(
        self, host: HostState, request: Submission, after: Sequence[Reply[Any]], job: WaitingJob, note: str
    ) -> None:
        super().__init__(self.withdraw)
        self.host, self.request, self.job, self.note, self._is_withdrawn = host, request, job, note, False
        self._after: Sequence[Reply[Any]] = after
        self._line = _lines.setdefault(host, SubmissionLine())

    @property
    def is_waiting(self) -> bool:
        """Whether the scheduler does not take it for now, and it is not being sent again at this moment."""
        return self in self._line.waiting

    def start(self) -> None:
        """Send it together with what was sent just now, or let it wait behind those that wait. Does not wait."""
        if not self._line.is_free:
            loop.call(self._line.take, self)
            return
        try:
            sent = self._send()
        except ClusterfnError as error:
            # The connection was closed.
            self.reject(error)
            return
        await_at_exit(loop.start(self._line.admit(self, sent)))

    def _send(self) -> Reply[Completed]:
        want = self.request
        sent = self.host.connection.run(
            want.argv, cwd=want.cwd, unset=want.unset, timeout_s=want.timeout_s, after=self._after, stop_at=want.stop_at
        )
        self.id = sent.id
        return sent

    async def try_once(self, sent: Reply[Completed] | None = None) -> str:
        """Send it, unless that was done; return why the scheduler does not take it now, "" if it has its answer."""
        scheduler = self.host.scheduler
        try:
            while True:
                answer = await _answer(self._send() if sent is None else sent)
                full = scheduler.refused_for_now(answer)
                other = None if full else scheduler.again(self.request, answer)
                # A job that was withdrawn in the meantime is not submitted again, but one that was taken must be
                # reported.
                if (full or other) and self._is_withdrawn:
                    self.resolve(None)
                    return ""
                if full:
                    return f"not in the queue of {scheduler.title} yet; {full}"
                if other is None:
                    started = self._started(answer)
                    self.job.taken(started)
                    self.resolve(started)
                    return ""
                # The first request has waited for its predecessors, so the next one need not.
                self.request, self._after, sent = other, (), None
        except (ClusterfnError, concurrent.futures.CancelledError) as error:
            self.reject(error)
        except Exception as error:  # noqa: BLE001 - the parser of an answer may raise anything
            # Other jobs wait behind this one, so it must not end the line.
            _log.exception("a submission failed")
            self.reject(SubmitError(f"the scheduler's answer was not understood: {error!r}", stage="submit"))
        return ""

    def _started(self, answer: Answer) -> Started:
        scheduler = self.host.scheduler
        try:
            scheduler_id, host = scheduler.submitted(answer), self.host.settings.name
            for note in scheduler.notes(answer):
                # A site may print the same note about each job.
                if console.is_new(host, note):
                    console.tell(note)
        except SubmitError as refusal:
            if not refusal.retryable:
                raise
            # A submission that failed in this way may have succeeded all the same, so the job is looked for before it
            # is given up.
            return Started("", refusal)
        return Started(scheduler_id)

    def ask_job(self, question: Callable[[WaitingJob], T], otherwise: T) -> T:
        """Ask the job that waits; what that raises ends this submission alone, and not those that wait beside it."""
        try:
            return question(self.job)
        except Exception as error:  # noqa: BLE001 - code that shows the job may raise anything
            # Other jobs wait beside this one, so it must not end the line.
            _log.exception("a job that waits to be submitted failed")
            if self.is_waiting:
                self._line.waiting.remove(self)
            self.reject(SubmitError(f"the job that waited failed on this machine: {error!r}", stage="submit"))
            return otherwise

    def is_wanted_now(self) -> bool:
        return self.ask_job(lambda job: job.is_wanted_now(self), False)

    def reject(self, error: BaseException) -> None:
        """Set the error, and tell its job, unless it has ended."""
        if not self.done():
            loop.begin(self._tell_refused(error))
        super().reject(error)

    async def _tell_refused(self, error: BaseException) -> None:
        self.job.refused(error)

    def withdraw(self, error: BaseException | None = None) -> None:
        """Do not send it again, and end it if it waits; its answer says whether the scheduler has it."""
        self._is_withdrawn = True
        loop.call(self._leave, error)

    def _leave(self, error: BaseException | None) -> None:
        if self.is_waiting:
            self._line.waiting.remove(self)
            self.resolve(None) if error is None else self.reject(error)


async def _answer(sent: Reply[Completed]) -> Answer:
    try:
        ran = await sent
    except HostError as error:
        if error.kind != "timeout":
            raise
        # The command was killed because it took too long, and may have submitted the job.
        return Answer(None, "", error.message)
    return Answer(ran.rc, ran.out.decode("utf-8", "replace"), ran.err.decode("utf-8", "replace"))


class SubmissionLine:
    """What one host's scheduler does not take for now.

    Attributes:
        waiting: Those that wait, the next one first.
    """

    def __init__(self) -> None:
        self.waiting: list[PendingSubmission] = []
        self._is_trying, self._serving = False, loop.Single(self._serve_all)
        self._reason, self._renewed = "", time.monotonic()

    @property
    def is_free(self) -> bool:
        """Whether none waits, so that one more may be sent at once."""
        return not self.waiting and not self._is_trying

    async def admit(self, submission: PendingSubmission, sent: Reply[Completed]) -> None:
        """Let one that was sent wait if the scheduler does not take it now."""
        refusal = await submission.try_once(sent)
        if refusal:
            is_first = self.is_free
            is_smaller = self._keep(submission, refusal, is_first)
            self._serving.begin(0.0 if is_first and is_smaller else _FIRST_S)

    def take(self, submission: PendingSubmission) -> None:
        """Let one that was not sent wait behind the others."""
        self.waiting.append(submission)
        self._tell([submission])
        self._serving.begin(_FIRST_S)

    def _keep(self, submission: PendingSubmission, reason: str, is_first: bool) -> bool:
        """Let one that was refused wait, first or last; return whether it has become smaller, so that it may fit."""
        rest = submission.ask_job(lambda job: job.split(submission), None)
        if submission.done():
            return False
        both = [submission] if rest is None else [submission, rest]
        self.waiting = [*both, *self.waiting] if is_first else [*self.waiting, *both]
        is_new, self._reason = reason != self._reason, reason
        self._tell(list(self.waiting) if is_new else both)
        return rest is not None

    def _tell(self, submissions: Sequence[PendingSubmission]) -> None:
        for submission in submissions:
            submission.ask_job(lambda job: job.refused_for_now(self._reason), None)

    async def _serve_all(self, pause_s: float) -> None:
        """Send those that wait, one at a time, less and less often while the scheduler takes none."""
        slower_s = pause_s * _SLOWING or _FIRST_S
        while self.waiting:
            await asyncio.sleep(pause_s)
            self._renew_notes()
            # The question may end a submission, which then leaves the line, so this goes through a copy.
            first = next(filter(PendingSubmission.is_wanted_now, list(self.waiting)), None)
            refusal = await self._try(first) if first is not None else self._reason
            if first is not None and not refusal:
                # A scheduler that has taken one job may have room for more at once.
                pause_s, slower_s = 0.0, _FIRST_S
            elif first is not None and self._keep(first, refusal, is_first=True):
                pause_s = 0.0
            else:
                pause_s, slower_s = slower_s, min(_LONGEST_S, slower_s * _SLOWING)

    async def _try(self, submission: PendingSubmission) -> str:
        self.waiting.remove(submission)
        self._is_trying = True
        trying = loop.start(submission.try_once())
        # The program waits at its end for this try, and not for the submission: `finish_submitting` waits for those
        # with their reasons.
        await_at_exit(trying)
        try:
            return await asyncio.wrap_future(trying)
        finally:
            self._is_trying = False

    def _renew_notes(self) -> None:
        """Say again, now and then, that those that wait here will be submitted."""
        if not self.waiting or time.monotonic() - self._renewed < _RENEW_S:
            return
        self._renewed, host = time.monotonic(), self.waiting[0].host
        notes = sorted({submission.note for submission in self.waiting})
        for first in range(0, len(notes), _NOTES_AT_ONCE):
            # The connection was closed.
            with contextlib.suppress(ClusterfnError):
                host.connection.run(["touch", "-c", "--", *notes[first : first + _NOTES_AT_ONCE]])


_lines: weakref.WeakKeyDictionary[HostState, SubmissionLine] = weakref.WeakKeyDictionary()
