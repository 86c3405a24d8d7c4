"""Follows one job: through its scheduler's queue, then by its files, to its end or its withdrawal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING, RUNNING, STARTING, SUSPENDED
from clusterfn.calls import conclusion, liveness
from clusterfn.calls.following import AgentSource, lose
from clusterfn.calls.job_run import JobRun
from clusterfn.calls.queue_place import is_from_host
from clusterfn.calls.run import Location
from clusterfn.calls.submission_line import Started, WaitingJob
from clusterfn.errors import Cancelled, ClusterfnError, DependencyFailed, HostError
from clusterfn.hosts import loop
from clusterfn.hosts.scheduler_watch import UNREACHABLE, Seen, Silent
from clusterfn.scheduler import base
from clusterfn.scheduler.base import SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.config.spec import ResultPolicy
    from clusterfn.hosts.connection import HostConnection
    from clusterfn.hosts.host_state import HostState


class Tracker(WaitingJob):
    """Follows one job; see `AgentSource` for `live`, and `Location` for the last two."""

    _is_started = _is_wanted = False
    # The connection by which it was sent, if it waits for its turn to be followed.
    _through: HostConnection | None = None

    def __init__(
        self, host: HostState, job_id: str, name: str, live: bool = False, bridge: str = "",
        results: ResultPolicy | None = None,
    ) -> None:  # fmt: skip
        folder, scheduler_name = layout.job_dir(host.root, job_id), layout.job_name(name, job_id)
        self.host, accepted = host, results or host.settings.result_policy()
        self.run = JobRun(Location(host, job_id, folder, scheduler_name, accepted, bridge), name)
        self.run.hurry = self._skip_turn
        self.source = AgentSource(self.run, live)
        self.run.at_close.append(self._leave)

    def follow(self, in_turn: bool = False) -> None:
        """Follow it from its first attempt on; in turn: once it is one of the oldest, begins, or is waited for."""
        if in_turn and not self._is_wanted:
            self._through = self.host.connection
            if not self.host.follow_window.enter(self):
                return
        self.source.follow()
        loop.call(self._watch_heartbeat)

    def _skip_turn(self) -> None:
        self._is_wanted = True
        if self._through is not None and self.host.follow_window.hurry(self):
            loop.begin(self._take_turn())

    async def _take_turn(self) -> None:
        """Follow it, which has a place among those that are followed, over the connection by which it was sent."""
        # The job may have ended at this moment: its place goes to the next one.
        if self.run.is_closed:
            self._leave()
            return
        try:
            # A later connection knows nothing of the job, whose requests were lost with the connection that sent it.
            if self._through is not None and not self._through.link.usable():
                raise HostError(f"the connection to {self.run.host} was closed", host=self.run.host)
            self.follow()
        except ClusterfnError as ended:
            lose(self.run, ended)

    def _watch_heartbeat(self) -> None:
        """Watch for its heartbeat to stop, once it is both started and followed."""
        # A refusal may have ended it while it got its place among those that are followed.
        if self.run.is_closed:
            self._leave()
        elif self._is_started and self.source.awaited is not None and self.run.heartbeat.watch is None:
            liveness.watch_heartbeat(self.run)

    # its submission

    def refused(self, error: BaseException) -> None:
        queue = self.run.queue
        refused = queue.refusal(error, "job")
        if getattr(error, "kind", "") == "skipped" and queue.inputs and not isinstance(refused, Cancelled):
            # The host skips a request whose predecessors failed, so the cause is a call whose value this job takes.
            labels = ", ".join(reference.label for reference in queue.inputs)
            refused = DependencyFailed(f"{labels}: not sent, so its value will not exist", stage="submit")
            refused.host, refused.__cause__ = self.run.host, error
        self.run.fail(refused)
        self.run.close()
        if is_from_host(error) and not isinstance(refused, Cancelled):
            queue.remove_folder()

    async def script_ended(self) -> None:
        await liveness.process_ended(self.run)

    def taken(self, started: Started) -> None:
        """Watch the job, which was started, in its scheduler's queue and by its heartbeat."""
        queue, at = self.run.queue, self.run.at
        if queue.sending is not None:
            queue.sending.forget()
        # The job was started after all that was sent for it, so the answers to that are not needed any more.
        queue.sending = queue.laid_out = None
        at.scheduler_id = at.scheduler_id or started.scheduler_id
        if at.doubt is not started.doubt:
            at.doubt = started.doubt
        queue.note_acceptance()
        # The outcome may have come together with this answer.
        if not self.run.is_closed:
            self._is_started = True
            if self.host.scheduler.knows_all:
                self.queued()
            loop.call(self._watch_heartbeat)

    def refused_for_now(self, reason: str) -> None:
        """Show why it is not in the scheduler's queue yet; its time in the queue counts from its submission here."""
        self.run.queue.note_refusal(reason)
        self._show_waiting()

    def queued(self) -> None:
        """Watch it in the scheduler's queue, unless its outcome has come."""
        if self.run.is_closed:
            return
        self.run.heartbeat.is_listed = self.host.scheduler.knows_all
        time_s = self.run.asked.time_s if self.run.asked is not None else None
        self.host.watch.add(self.run.at.scheduler_name, self.on_scheduler, time_s, lambda: self.run.state != PENDING)

    def attach(self, claim: bytes, started: bytes) -> None:
        """Follow a job that another process sent, of which these files are known; b"" for one that does not exist."""
        submission = conclusion.submission_of(claim.decode("ascii", "replace"))
        self.follow()
        self.taken(Started(submission or _script_id(started.decode("utf-8", "replace"))))
        if not submission and not self.host.scheduler.knows_all:
            self.queued()
            loop.begin(liveness.look_until_it_begins(self.run))

    # its scheduler

    def on_scheduler(self, seen: Seen) -> None:
        run = self.run
        if run.is_closed or (run.state != PENDING and not self.host.scheduler.knows_all):
            self.host.unwatch(run.at.scheduler_name)
            return
        if isinstance(seen, Silent):
            run.set_state(run.state, seen.in_words)
            return
        if seen is None or seen.phase != base.PENDING:
            run.hurry()
        if run.reason.startswith(UNREACHABLE):
            run.set_state(run.state, "")
        if seen is not None:
            run.at.scheduler_id, run.at.doubt = seen.scheduler_id or run.at.scheduler_id, None
            if run.state == PENDING and seen.phase == base.PENDING:
                run.queue.queue_reason = run.queue.reason_in_queue(seen)
                self._show_waiting()
            # The job's supervisor may not have been able to say that the scheduler has stopped it.
            if seen.suspended and run.state in (STARTING, RUNNING):
                run.set_state(SUSPENDED, seen.suspended)
            elif not seen.suspended and run.state == SUSPENDED and seen.phase == base.RUNNING:
                run.set_state(RUNNING)
        liveness.scheduler_said(run, seen)

    def _show_waiting(self) -> None:
        if self.run.state == PENDING and not self.run.is_closed:
            self.run.set_state(PENDING, self.run.queue.waiting_reason)

    def waits_for(self, what: str) -> None:
        """Show what it waits for in addition to its turn, and how far that is; "" for nothing any more."""
        self.run.queue.other_reason = what
        self._show_waiting()

    def cannot_have(self, verdict: SchedulerVerdict) -> None:
        """Conclude the job, unless it has begun all the same: there will be no environment."""
        self.run.queue.withdraw_submissions()
        loop.begin(self._conclude_when_answered(verdict))

    async def _conclude_when_answered(self, verdict: SchedulerVerdict) -> None:
        # A scheduler cannot cancel what it does not know yet.
        await self.run.queue.answered()
        liveness.conclude_and_cancel(self.run, verdict)

    def _leave(self) -> None:
        """Leave the queue and the window of those that are followed: it has ended."""
        if self._through is not None:
            for tracker in self.host.follow_window.leave(self):
                loop.begin(tracker._take_turn())
        self.run.queue.stop_waiting()
        for submission in self.run.queue.submissions:
            # The host has not started its script yet, and need not.
            submission.cancel()


def _script_id(started: str) -> str:
    """Return the process of job.sh, written as in the claim; "" if it never began."""
    boot, _, stat = started.partition(" ")
    fields = stat.rpartition(")")[2].split()
    return f"{boot}:{stat.split(' ')[0]}:{fields[19]}" if len(fields) > 19 else ""
