"""What is sent for a job or a group, and its place in the queue of its host's scheduler."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import posixpath
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from clusterfn.bridge import layout
from clusterfn.calls.submission_line import PendingSubmission, Started, WaitingJob
from clusterfn.errors import Cancelled, ClusterfnError, HostError, SubmitError, Unsatisfiable
from clusterfn.hosts import exit_flush, loop, remote_files
from clusterfn.hosts.connection import Reply, SpawnReply
from clusterfn.hosts.rpc.reply import RequestCancelled
from clusterfn.packing.dependencies import describe_open
from clusterfn.scheduler.base import Answer

if TYPE_CHECKING:
    from clusterfn.hosts.connection import Completed
    from clusterfn.hosts.host_state import HostState
    from clusterfn.hosts.transfer import Sending
    from clusterfn.packing.dependencies import Reference
    from clusterfn.scheduler.base import JobState, Submission

S = TypeVar("S", bound=Reply[Any])
_TIMEOUT_S = 60.0
_DROP_S = 15.0
# Most hosts and schedulers take a job sooner, so that no note about it is needed.
TAKES_S = 3.0


class QueuePlace:
    """What is sent for one job or group, its submissions, and why it waits.

    Attributes:
        laid_out: The answer to the sending of its folder, if this process has sent it.
        starting: The requests that start it and are not answered yet, in their order.
        queue_reason, other_reason: Why it waits for its turn, and what it waits for in addition; "" for nothing.
        inputs: The jobs whose values it takes, as far as this process knows them.
        is_refused: Whether the scheduler does not take it for now.
    """

    # A program may have 100,000 waiting jobs.
    __slots__ = (
        "folder", "host", "inputs", "is_refused", "laid_out", "other_reason", "queue_reason", "scheduler_name",
        "sending", "starting",
    )  # fmt: skip

    def __init__(self, host: HostState, folder: str, scheduler_name: str) -> None:
        self.host, self.folder, self.scheduler_name = host, folder, scheduler_name
        self.sending: Sending | None = None
        self.laid_out: Reply[bool] | None = None
        self.starting: dict[Reply[Any], None] = {}
        self.queue_reason = self.other_reason = ""
        self.inputs: Sequence[Reference] = ()
        self.is_refused = False

    @property
    def note(self) -> str:
        """The file on the host by which others know that it waits in this program."""
        return posixpath.join(self.folder, layout.REFUSED)

    @property
    def waiting_reason(self) -> str:
        """Why it waits: its place in the queue, and what it waits for in addition to its turn."""
        reason = "; ".join(filter(None, [self.queue_reason, self.other_reason]))
        if self.host.settings.is_this_machine:
            # While this program computes on a GPU, its own jobs wait for it.
            reason = reason.replace(f"(pid {os.getpid()}, ", f"(this program, pid {os.getpid()}, ")
        return reason

    def reason_in_queue(self, seen: JobState) -> str:
        """Return why the scheduler lets it wait: for jobs whose values it takes, or for its turn."""
        return (describe_open(self.inputs) if seen.waits_for_jobs else "") or seen.in_words

    @property
    def waits_here(self) -> bool:
        """Whether its scheduler does not take it for now, so that it waits in this program to be submitted."""
        return self.is_refused and bool(self.starting)

    @property
    def submissions(self) -> list[Reply[Any]]:
        # A copy, because another thread may take answers.
        return list(self.starting)

    def submit(self, request: Submission, after: Sequence[Reply[Any]], job: WaitingJob) -> None:
        """Submit to the scheduler, or spawn on a host without one, once `after` has succeeded. Does not wait.

        A script may end right after this: Python waits at its exit until the host has answered.
        """
        if request.do != "spawn":
            self.expect(PendingSubmission(self.host, request, after, job, self.note)).start()
            return
        template = request.template and request.template._asdict()
        spawned = self.host.connection.spawn(
            request.argv, request.cwd, request.log, unset=request.unset, after=after, template=template
        )
        exit_flush.await_at_exit(loop.start(self._see_spawned(self.expect(spawned), job)))

    def expect(self, submission: S) -> S:
        """Remember this request that starts it until it is answered: a program may have 100,000 waiting jobs."""
        self.starting[submission] = None
        submission.future.add_done_callback(lambda _: self.starting.pop(submission, None))
        return submission

    async def answered(self) -> None:
        """Wait until each request that starts it has an answer, which its job hears."""
        for submission in self.submissions:
            await submission.error()

    async def _see_spawned(self, spawned: SpawnReply, job: WaitingJob) -> None:
        """Tell the job that its script was started, or why not."""
        try:
            answer = await spawned
            started = Started(self.host.scheduler.submitted(Answer(pid=answer.pid, starttime=answer.starttime)))
        except (ClusterfnError, concurrent.futures.CancelledError) as error:
            # It was refused, or not all that it needs has arrived.
            job.refused(error)
            return
        job.taken(started)
        loop.begin(self._see_script(spawned, job))

    async def _see_script(self, spawned: SpawnReply, job: WaitingJob) -> None:
        try:
            status = await spawned.exited
        except (ClusterfnError, concurrent.futures.CancelledError):
            # A connection that was closed on purpose must not be opened again to ask.
            return
        # Without a status, the host's agent no longer knows the script, which ends or waits without any further report.
        waits = status is not None and status == self.host.scheduler.queued_status
        if status is None or waits:
            job.queued()
        if not waits:
            await job.script_ended()

    def note_refusal(self, reason: str) -> None:
        """Say on the host why it is not in the queue, for others who look for it there."""
        self.queue_reason, self.is_refused = reason, True
        # Without this order the note could be the only file in the folder of the job.
        after = [self.laid_out] if self.laid_out is not None else []
        with contextlib.suppress(HostError):
            self.host.connection.put(self.note, reason.encode(), after=after)

    def note_acceptance(self) -> None:
        """Take the note back, as the scheduler has it now."""
        if self.is_refused:
            self.is_refused, self.queue_reason = False, ""
            # Other programs believe the note, so it must go as soon as the scheduler has the job.
            self.host.connection.run(["rm", "-f", self.note])

    def refusal(self, error: BaseException, what: str) -> ClusterfnError:
        """Return the error of what was not started, with its place; `Cancelled` if it was stopped while it was sent."""
        host = self.host.settings.name
        if self.sending is not None and self.sending.dropped:
            message = f"the {what} was stopped while it was being sent: nothing ran on {host}"
            return Cancelled(message, host=host, stage="submit")
        refused = error if isinstance(error, ClusterfnError) else SubmitError(str(error), stage="submit")
        refused.host, refused.stage = host, refused.stage or "submit"
        return refused

    def remove_folder(self) -> None:
        """Remove its folder from the host. Does not wait."""
        # The connection was closed.
        with contextlib.suppress(HostError):
            remote_files.remove_folder(self.host.connection, self.folder)

    def withdraw_submissions(self, error: BaseException | None = None) -> None:
        """Submit nothing again: in the queue after it was cancelled, it would run all the same."""
        for submission in self.submissions:
            if isinstance(submission, PendingSubmission):
                submission.withdraw(error)

    def stop_waiting(self) -> None:
        """Take note that it has ended: nothing of it waits any more."""
        self.inputs = ()
        self.host.unwatch(self.scheduler_name)
        # Another program may have cancelled it before its scheduler had room for it.
        self.withdraw_submissions()

    def await_folder(self) -> None:
        """Wait until its folder is on the host, where that appears as a whole: before, nothing can be made below it."""
        # Another thread forgets the request once the host has answered.
        if (laid_out := self.laid_out) is not None:
            laid_out.exception(_TIMEOUT_S)
            self.laid_out = None

    def await_submissions(self) -> None:
        """Submit nothing again, and wait for answers that are due: a scheduler cannot cancel what it does not know."""
        self.await_folder()
        # Others may still have hundreds of jobs to start. A job that has an outcome there is not started.
        if not self.host.scheduler.has_nodes:
            return
        self.withdraw_submissions()
        what = f"waiting for {self.host.settings.name} to answer the submission of {self.scheduler_name}"
        loop.result(loop.start(self.answered()), what, _TIMEOUT_S)

    def open_requests(self) -> list[Reply[Any]]:
        """Return this process's requests after which its folder is on the host, and its scheduler knows it."""
        # Without a scheduler, the request that submits the job ends only with the job itself.
        sent = [self.laid_out, *(self.submissions if self.host.scheduler.has_nodes else ())]
        return [
            request for request in sent if request is not None and request.is_of_this_process and not request.done()
        ]

    def unanswered(self, since: float) -> str:
        """Say who has not taken or started it yet, if it was sent longer ago than a moment; "" otherwise."""
        silent_s, host = time.monotonic() - since, self.host.settings.name
        is_there = self.laid_out is None or self.laid_out.done()
        if silent_s < TAKES_S or self.is_refused or (is_there and not self.starting):
            return ""
        rules = self.host.scheduler_rules
        if is_there and not rules.has_nodes:
            # Few jobs begin there at a time.
            return f"{host} has not started it for {silent_s:.0f} s"
        return f"{f'{rules.title} on {host}' if is_there else host} has not taken it for {silent_s:.0f} s"

    def cancel(self) -> Reply[Completed] | None:
        """Take it out of the scheduler's queue, or have it send its signal; does not wait."""
        argv = self.host.scheduler.cancel_command(self.scheduler_name)
        reply = self.host.connection.run(argv, unset=self.host.scheduler.unset) if argv else None
        if reply is not None:
            exit_flush.await_at_exit(reply)
        return reply

    def leave(self) -> None:
        """Take it out of the queue, and wait for that: a program that ends now must leave no waiting job."""
        reply = self.cancel()
        if reply is not None and (answer := reply.result(_TIMEOUT_S)).rc != 0:
            raise SubmitError(
                "the job will not run, but its scheduler did not remove it from the queue",
                host=self.host.settings.name,
                stage="queue",
                evidence=answer.err.decode("utf-8", "replace").splitlines(),
                hint=f"try again, or run on the host: {self.host.scheduler.cancel_by_hand(self.scheduler_name)}",
            )

    def stop_sending(self) -> bool:
        """Stop sending it; false once all of it is on the host, and its scheduler has answered."""
        # The folder appears as a whole.
        is_dropped = self.sending is not None and self.sending.drop(self.host.connection, self.folder, _DROP_S)
        if is_dropped:
            self.withdraw_submissions(RequestCancelled("what the job needs was not sent"))
        else:
            self.await_submissions()
        return is_dropped


def is_from_host(error: BaseException) -> bool:
    """Whether the host itself refused: one that can no longer be asked may have started the job."""
    return isinstance(error, (SubmitError, Unsatisfiable)) or (isinstance(error, HostError) and bool(error.kind))
