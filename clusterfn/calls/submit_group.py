"""Submits elements of a group to its scheduler, or spawns them on a host without one, and reports refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clusterfn.calls.job_tracker import Tracker
from clusterfn.calls.submit import answer_of
from clusterfn.config.spec import JobSpec
from clusterfn.errors import ClusterfnError, SubmitError
from clusterfn.hosts.connection import Completed, Reply, SpawnReply
from clusterfn.hosts.exit_flush import await_at_exit
from clusterfn.hosts.host_state import HostState
from clusterfn.scheduler.base import Answer, Submission

_LARGEST_ARRAY = 1000  # SLURM's own default


class GroupSubmitter:
    """Starts elements of one group.

    Args:
        session: Its host.
        job: What it was sent as.
        tracker_of: The tracker of an element.
        refused: Called with the elements that were not started, and why.
        queued: Called when one waits in the host's queue.
    """

    def __init__(
        self, session: HostState, job: JobSpec, tracker_of: Callable[[int], Tracker],
        refused: Callable[[range, BaseException], None], queued: Callable[[], None],
    ) -> None:  # fmt: skip
        self._session = session
        self._job = job
        self._tracker_of = tracker_of
        self._refused = refused
        self._queued = queued
        self._open: list[Reply[Any]] = []
        self._wanted = range(0)

    def start(self, numbers: range, largest: int | None, after: Sequence[Reply[Any]]) -> None:
        """Start these elements, in arrays of at most `largest`; a script that ends now waits until they are."""
        self._wanted = numbers
        for some, request in self._session.scheduler.elements(self._job, numbers, largest or _LARGEST_ARRAY):
            reply = self._start(some, request, after)
            self._open.append(reply)
            await_at_exit(reply)

    def wait(self, timeout_s: float) -> None:
        """Wait until each request has its answer: a scheduler cannot cancel what it does not know yet."""
        for reply in list(self._open):
            reply.exception(timeout_s)

    def _start(self, some: range, request: Submission, after: Sequence[Reply[Any]]) -> Reply[Any]:
        connection = self._session.connection
        if request.do == "spawn":
            spawned = connection.spawn(request.argv, request.cwd, request.log, unset=request.unset, after=after)
            spawned.add_done_callback(lambda reply: self._spawned(some[0], reply, after))
            return spawned
        ran = connection.run(
            request.argv, cwd=request.cwd, unset=request.unset, timeout_s=request.timeout_s, after=after
        )
        ran.add_done_callback(lambda reply: self._submitted(some, reply, after))
        return ran

    def _spawned(self, number: int, reply: SpawnReply, after: Sequence[Reply[Any]]) -> None:
        error = reply.exception()
        if error is not None:
            self._report_refused(range(number, number + 1), after, error)
            return
        process, tracker = reply.result(0), self._tracker_of(number)
        tracker.scheduler_id = self._session.scheduler.submitted(Answer(pid=process.pid, starttime=process.starttime))
        reply.exited.add_done_callback(lambda exited: self._script_ended(tracker, exited))

    def _script_ended(self, tracker: Tracker, exited: Reply[int | None]) -> None:
        if exited.exception() is not None:
            return
        if self._session.scheduler.waits(exited.result(0)):
            self._queued()
        else:
            tracker.liveness.process_ended()

    def _submitted(self, some: range, reply: Reply[Completed], after: Sequence[Reply[Any]]) -> None:
        scheduler = self._session.scheduler
        try:
            answer = answer_of(reply)
            scheduler.submitted(answer)
        except SubmitError as refusal:
            if not scheduler.ambiguous(answer):
                self._refused(some, refusal)
        except ClusterfnError as error:
            self._report_refused(some, after, error)

    def _report_refused(self, some: range, after: Sequence[Reply[Any]], error: BaseException) -> None:
        """Report that these were not started; none was, if what all of them need did not arrive."""
        none = any(reply.done() and reply.exception(0) is not None for reply in after)
        self._refused(self._wanted if none else some, error)
