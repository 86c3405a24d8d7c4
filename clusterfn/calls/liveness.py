"""Notices that a job or elements of a group died without an outcome, and has `conclusion` publish one.

Reasons are a killed node, a restarted host, an impossible request.

A job is given up only on two signs. The scheduler (or the process table) says that it is gone, and its heartbeat has
stopped or never began. Even then the host publishes the outcome, by the same link as the job itself would, or finds
that the job has published its own. The conversations with the host run in the loop of `clusterfn.hosts.loop`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import posixpath
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clusterfn.bridge import job_states, layout
from clusterfn.calls import silent_jobs
from clusterfn.calls.conclusion import Conclusion, find_loss
from clusterfn.errors import ClusterfnError, SubmitError
from clusterfn.hosts import loop
from clusterfn.hosts.scheduler_watch import LookCounter, Seen, Silent
from clusterfn.scheduler.base import RUNNING, Evidence, SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.calls.queue_tracker import FollowedJob
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState

SILENT_AFTER_S = job_states.SILENT_AFTER_S
LOOKS = 2
# Another process may be submitting the job at this moment, which may take it more than a minute.
LOOKS_UNSEEN = 4
_BEGIN_S = 15.0
_ENDS_S, _ENDS_TIMES = 2.0, 8
# A controller is asked about one silent element no more often than this.
_EVIDENCE_S = 60.0
_FORGOTTEN = SchedulerVerdict(
    layout.LOST, "the scheduler no longer knows the group's elements, and they never started",
    hint="group.retry_failed()", stage="submit",
)  # fmt: skip


class LivenessMonitor:
    """Weighs what the scheduler and the heartbeat say of one job.

    Args:
        tracker: What follows the job.
    """

    def __init__(self, tracker: FollowedJob) -> None:
        self._tracker = tracker
        self._still: Reply[None] | None = None
        self._looks = LookCounter()
        self._is_looking = self._is_listed = self._is_silent = False
        self._ask_from = 0.0

    @functools.cached_property
    def conclusion(self) -> Conclusion:
        """What has the host conclude it, which hardly any job needs."""
        return Conclusion(self._tracker, self.process_ended)

    def expect_looks(self) -> None:
        """Take note that each look at the scheduler will be reported, with what it says of this job alone."""
        self._is_listed = self._tracker.session.scheduler.knows_all

    @property
    def watches(self) -> bool:
        """Whether it watches for a heartbeat to stop."""
        return self._still is not None

    def watch_heartbeat(self) -> None:
        """Watch for the heartbeat of the present attempt to stop."""
        if self._still is not None:
            self._still.cancel()
        # With an outcome, the job has ended, and only the news of that is still on its way.
        ended = posixpath.join(self._tracker.attempt_folder, layout.OUTCOME)
        self._still = self._tracker.connection.still(
            self._heartbeat, SILENT_AFTER_S, self._silent,
            unless=ended, within=self._tracker.folder, on_gone=lambda: loop.begin(self._give_up_if_lost()),
        )  # fmt: skip

    def end(self) -> None:
        """Stop monitoring: the job has an outcome."""
        if self._still is not None:
            self._still.cancel()

    @property
    def _heartbeat(self) -> str:
        return posixpath.join(self._tracker.attempt_folder, layout.HEARTBEAT)

    def scheduler_said(self, seen: Seen) -> None:
        """Count the looks at which the job could never start, or was gone: two in a row count.

        After a missed heartbeat one look counts, unless it says that the job runs.
        """
        if isinstance(seen, Silent):
            return
        was_silent, self._is_silent = self._is_silent, False
        if was_silent and (seen is None or seen.phase != RUNNING):
            self._ask()
        verdict = self._looks.count(seen, self._tracker.session.host.name)
        # The comparison is exact, so that later looks do not conclude the job again.
        if verdict is not None and self._looks.hopeless == LOOKS:
            self.conclusion.conclude_and_cancel(verdict)
        if self._looks.gone >= (LOOKS if self._tracker.scheduler_id or self._tracker.doubt else LOOKS_UNSEEN):
            loop.begin(self.process_ended())

    async def process_ended(self, after_s: float = 0.0) -> None:
        """Take note that the job's script has ended; if its heartbeat never began, nothing else would report it."""
        await asyncio.sleep(after_s)
        self._tracker.skip_turn()
        if self._tracker.is_closed or self._is_looking:
            return
        self._is_looking = True
        try:
            # None is no answer, and nothing is concluded from that.
            if await self._has_begun() is False:
                self._ask()
        finally:
            self._is_looking = False

    async def _has_begun(self) -> bool | None:
        """Ask for its heartbeat; None if the host gives no answer: then the next missed heartbeat asks again."""
        try:
            (begun,) = await self._tracker.connection.have([self._heartbeat])
        except (ClusterfnError, concurrent.futures.CancelledError):
            return None
        return begun

    async def look_until_it_begins(self) -> None:
        """Ask again and again until the job begins: another process submits it, and does not report how that went."""
        while not self._tracker.is_closed and await self._has_begun() is False:
            self._ask()
            await asyncio.sleep(_BEGIN_S)

    async def look_until_it_ends(self) -> None:
        """Ask a few times whether it is gone: its scheduler was asked to kill it."""
        for _ in range(_ENDS_TIMES):
            self._ask()
            await asyncio.sleep(_ENDS_S)

    async def _give_up_if_lost(self) -> None:
        """Give up a job whose folder was gone at several looks."""
        job = self._tracker
        lost = await find_loss(job.session, job.folder, job.scheduler_name)
        if lost is not None and not self._tracker.is_closed:
            job.cannot_conclude(lost)

    def _silent(self) -> None:
        """Look for the job, or have it asked about: either answers for all jobs that are silent together."""
        self._tracker.entry.note_silence()
        session, now = self._tracker.session, time.monotonic()
        session.watch.look_now()
        if self._is_listed:
            self._is_silent = True
        elif now >= self._ask_from:
            # Only a scheduler's controller is spared: the host itself can be asked about its processes at any time.
            self._ask_from = now + _EVIDENCE_S if session.scheduler.has_nodes else 0.0
            self._ask()

    def _ask(self) -> None:
        """Have the host asked about it, together with others."""
        if not self._tracker.is_closed:
            silent_jobs.of_host(self._tracker.session).ask(self.conclusion)


async def explain_unstarted(
    session: HostState, folder: str, scheduler_ids: Sequence[str], doubt: SubmitError | None
) -> SchedulerVerdict | None:
    """Find out from the scheduler why elements that have not begun never will.

    Args:
        folder: The group's.
        scheduler_ids: Those of all submissions that are known. Without any, no look has found one.
        doubt: What the scheduler said at a submission that may have succeeded all the same.

    Returns:
        None while the scheduler says that one of them may live, or does not answer, or one may wait in a program.
    """
    scheduler = session.scheduler
    verdict: SchedulerVerdict | None = _FORGOTTEN
    if doubt:
        message = f"the scheduler does not know the group's elements, and they never started: {doubt.message}"
        verdict = _FORGOTTEN._replace(message=message, evidence=tuple(doubt.evidence))
    try:
        for scheduler_id in scheduler_ids:
            answer = await session.connection.run(scheduler.evidence_command(scheduler_id), unset=scheduler.unset)
            text = (answer.out + answer.err).decode("utf-8", "replace")
            verdict = scheduler.explain(Evidence(text, "", scheduler_id, silent_jobs.job_of(folder)))
            if verdict is None:
                return None
        return None if await silent_jobs.is_refused_elsewhere(session.connection, folder) else verdict
    except (ClusterfnError, concurrent.futures.CancelledError):
        return None
