"""Follows one job: through its scheduler's queue, then as a `Follower`, to its end or its withdrawal."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING, RUNNING, STARTING, SUSPENDED
from clusterfn.calls import conclusion
from clusterfn.calls.conclusion import parse_conclusion
from clusterfn.calls.follower import Follower
from clusterfn.calls.queue_tracker import JobBackend, is_from_host
from clusterfn.calls.submission_line import PendingSubmission, Started, WaitingJob
from clusterfn.errors import Cancelled, ClusterfnError, DependencyFailed, HostError
from clusterfn.hosts import loop
from clusterfn.hosts.scheduler_watch import UNREACHABLE, Seen, Silent
from clusterfn.scheduler import base
from clusterfn.scheduler.base import JobState, SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.config.spec import ResultPolicy
    from clusterfn.hosts.connection import HostConnection, Reply
    from clusterfn.hosts.host_state import HostState

_TIMEOUT_S = 60.0


class Tracker(Follower, JobBackend, WaitingJob):
    """Follows one job.

    Args:
        host: Its host.
        job_id: Its id.
        name: The function's name.
        live, bridge, keeps, results: See `Follower`.

    Attributes:
        time_s: For how long it may run, as its call asks.
        submission: The request that starts it, if this process does so.
    """

    time_s: float | None = None
    _is_started = _is_wanted = _is_in_turn = False
    _through: HostConnection | None = None

    def __init__(
        self, host: HostState, job_id: str, name: str, live: bool = False, bridge: str = "", keeps: bool = False,
        results: ResultPolicy | None = None,
    ) -> None:  # fmt: skip
        folder, scheduler_name = layout.job_dir(host.root, job_id), layout.job_name(name, job_id)
        JobBackend.__init__(self, host, folder, scheduler_name)
        Follower.__init__(self, host, folder, scheduler_name, live, bridge, keeps, results)
        self.submission: Reply[Any] | None = None

    def submissions(self) -> Sequence[Reply[Any]]:
        return [self.submission] if self.submission is not None else []

    def follow(self, in_turn: bool = False) -> None:
        """Follow it from its first attempt on. Does not wait.

        Args:
            in_turn: Only once it is one of its host's oldest, begins, or is waited for.
        """
        self._through = self.connection
        if in_turn and not self._is_wanted:
            self._is_in_turn = True
            if not self.host.follow_window.enter(self):
                return
        super().follow()
        loop.call(self._watch_heartbeat)

    def skip_turn(self) -> None:
        self._is_wanted = True
        if self._is_in_turn and self.host.follow_window.hurry(self):
            loop.begin(self._take_turn())

    async def _take_turn(self) -> None:
        """Follow it, which has a place among those that are followed, over the connection by which it was sent."""
        # The job may have ended at this moment: its place goes to the next one.
        if self.is_closed:
            self.end()
            return
        try:
            # A later connection knows nothing of the job, whose requests were lost with the connection that sent it.
            if self._through is not None and not self._through.usable():
                raise HostError(f"the connection to {self.host.settings.name} was closed", host=self.host.settings.name)
            self.follow()
        except ClusterfnError as ended:
            self._lose(ended)

    def watch_output(self, on_output: Callable[[str, bytes], Any]) -> Reply[bytes]:
        self.skip_turn()
        return super().watch_output(on_output)

    def _watch_heartbeat(self) -> None:
        """Watch for its heartbeat to stop, once it is both started and followed."""
        if self._is_started and self.awaited is not None and not self.liveness.watches:
            self.liveness.watch_heartbeat()

    def refused(self, error: BaseException) -> None:
        """End it with why it was not started."""
        refused = self.refusal(error, "job")
        if getattr(error, "kind", "") == "skipped" and self.inputs and not isinstance(refused, Cancelled):
            # The host skips a request whose predecessors failed, so the cause is a call whose value this job takes.
            labels = ", ".join(each.label for each in self.inputs)
            refused = DependencyFailed(f"{labels}: not sent, so its value will not exist", stage="submit")
            refused.host, refused.__cause__ = self.host.settings.name, error
        self.entry.fail(refused)
        self.end()
        if is_from_host(error) and not isinstance(refused, Cancelled):
            self._remove_folder()

    async def script_ended(self) -> None:
        await self.liveness.process_ended()

    def taken(self, started: Started) -> None:
        """Watch the job, which was started, in its scheduler's queue and by its heartbeat."""
        if self.sending is not None:
            self.sending.forget()
        # The job was started after all that was sent for it, so the answers to that are not needed any more.
        self.sending = self.laid_out = None
        self.doubt, self.scheduler_id = started.doubt, self.scheduler_id or started.scheduler_id
        self._note_acceptance()
        # The outcome came together with this answer.
        if self.is_closed:
            return
        self._is_started = True
        if self.host.scheduler.knows_all:
            self.queued()
        loop.call(self._watch_heartbeat)

    def refused_for_now(self, reason: str) -> None:
        """Show why it is not in the scheduler's queue yet; its time in the queue counts from its submission here."""
        self._note_refusal(reason)
        self.show_waiting()

    def queued(self) -> None:
        """Watch it in the scheduler's queue, unless its outcome has come."""
        if self.is_closed:
            return
        self.liveness.expect_looks()
        self.host.watch.add(self.scheduler_name, self.on_scheduler, self.time_s)

    def attach(self, claim: bytes, started: bytes) -> None:
        """Follow a job that another process sent, from its first attempt on.

        Args:
            claim, started: What these files of the job hold; b"" for one that does not exist.
        """
        submission = claim.decode("ascii", "replace").strip()
        self.follow()
        self.taken(Started(submission or _script_id(started.decode("utf-8", "replace"))))
        if not submission and not self.host.scheduler.knows_all:
            self.queued()
            loop.begin(self.liveness.look_until_it_begins())

    def on_scheduler(self, seen: Seen) -> None:
        """Take what the scheduler said of the job at one look."""
        job = self.entry
        if self.is_closed:
            self.host.unwatch(self.scheduler_name)
            return
        if job.state != PENDING and not self.host.scheduler.knows_all:
            self.host.unwatch(self.scheduler_name)
            return
        if isinstance(seen, Silent):
            job.set_state(job.state, seen.in_words)
            return
        if seen is None or seen.phase != base.PENDING:
            self.skip_turn()
        if job.reason.startswith(UNREACHABLE):
            job.set_state(job.state, "")
        if seen is not None:
            self.scheduler_id, self.doubt = seen.scheduler_id or self.scheduler_id, None
            if job.state == PENDING and seen.phase == base.PENDING:
                self.queue_reason = self.reason_in_queue(seen)
                self.show_waiting()
            self._look_whether_suspended(seen)
        self.liveness.scheduler_said(seen)

    def _look_whether_suspended(self, seen: JobState) -> None:
        """Take from the scheduler that it has stopped the job, whose supervisor may not have been able to say so."""
        job, why = self.entry, seen.suspended
        if why and job.state in (STARTING, RUNNING):
            job.set_state(SUSPENDED, why)
        elif not why and job.state == SUSPENDED and seen.phase == base.RUNNING:
            job.set_state(RUNNING)

    def show_waiting(self) -> None:
        if self.entry.state == PENDING:
            self.entry.set_state(PENDING, self.waiting_reason)

    def cannot_have(self, message: str, evidence: Sequence[str], hint: str) -> None:
        """Conclude the job, unless it has begun all the same: there will be no environment."""
        verdict = SchedulerVerdict(layout.ENVIRONMENT, message, tuple(evidence), hint, "environment", withdraw=True)
        self.withdraw_submissions()
        loop.begin(self._conclude_when_answered(verdict))

    async def _conclude_when_answered(self, verdict: SchedulerVerdict) -> None:
        """Conclude it once its submission is answered: a scheduler cannot cancel what it does not know yet."""
        for starting in self.starting:
            await asyncio.wrap_future(starting)
        self.liveness.conclusion.conclude_and_cancel(verdict)

    def end(self) -> None:
        """Stop following the job, and cancel the open requests."""
        super().end()
        if self._is_in_turn:
            for each in self.host.follow_window.leave(self):
                loop.begin(each._take_turn())
        self.stop_waiting()
        if self.submission is not None and not isinstance(self.submission, PendingSubmission):
            # The host has not started its script yet, and need not.
            self.submission.cancel()

    def withdraw(self) -> bool:
        """Keep the job from ever starting; false if it has started."""
        if self._stop_sending():
            return True
        self.await_submissions()
        answer = self.liveness.conclusion.ask(conclusion.WITHDRAWN_JOB).result(_TIMEOUT_S)
        won = parse_conclusion(answer, self.host.settings, self.folder).get("won") is True
        if won:
            self._leave_queue()
        return won

    def stop(self, on_left: Callable[[str], object]) -> None:
        """Withdraw the job, or end it with its whole tree; `on_left` takes the names of processes that stay."""
        if not self.withdraw():
            self.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)
            self._leave_queue()
            look = self.liveness.look_until_it_ends
            loop.begin(conclusion.end_if_stuck(self, lambda: self.has_outcome, on_left, look))

    def _leave_queue(self) -> None:
        """Take the job out of the queue, and wait for that: a program that ends now must leave no waiting job."""
        reply = self.cancel_at_scheduler()
        if reply is None:
            return
        conclusion.check_removed(self.host, self.scheduler_name, reply.result(_TIMEOUT_S))


def _script_id(started: str) -> str:
    """Return the process of job.sh, written as in the claim; "" if it never began."""
    boot, _, stat = started.partition(" ")
    fields = stat.rpartition(")")[2].split()
    return f"{boot}:{stat.split(' ')[0]}:{fields[19]}" if len(fields) > 19 else ""
