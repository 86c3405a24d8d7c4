"""What trackers are made of: what is followed on a host, and what is sent for it and waits in a scheduler's queue."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING
from clusterfn.calls import outcome
from clusterfn.calls.submission_line import PendingSubmission
from clusterfn.errors import Cancelled, ClusterfnError, HostError, SubmitError, Unsatisfiable
from clusterfn.hosts import exit_flush, loop, remote_files
from clusterfn.hosts.transfer import Sending
from clusterfn.packing.dependencies import describe_open

if TYPE_CHECKING:
    from clusterfn.calls.arriving import Arriving
    from clusterfn.config.spec import ResultPolicy
    from clusterfn.hosts.connection import Completed, HostConnection, Reply
    from clusterfn.hosts.host_state import HostState
    from clusterfn.hosts.transfer import Transfer
    from clusterfn.packing.dependencies import Reference
    from clusterfn.scheduler.base import JobState

_TIMEOUT_S = 60.0
_DROP_S = 15.0
# Most hosts and schedulers take a job sooner, so that no note about it is needed.
TAKES_S = 3.0


class Entry:
    """What a `Tracker` follows, and to which it says what becomes of it. `Entry` itself takes no note of anything.

    Attributes:
        id, host, folder: Of the job, for messages.
        submitted_at: When it was sent, by the monotonic clock; infinite if it was not.
    """

    id = host = folder = ""
    submitted_at = float("inf")
    _now: tuple[str, str] = (PENDING, "")

    @property
    def state(self) -> str:
        """As `Job.state`."""
        return self._now[0]

    @property
    def reason(self) -> str:
        """Why it is in that state."""
        return self._now[1]

    def set_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        """Record its new state, and since when it is in it; now if that is not given."""

    def tell(self, kind: str, what: Any) -> None:
        """Show what it prints, "stdout" or "stderr" with bytes, or a "note" about it, to those who listen."""

    def note_silence(self) -> None:
        """Record that no heartbeat has come for `SILENT_AFTER_S`; the host repeats this while it lasts."""

    def note_quiet(self, why: str, item: str = "") -> None:
        """Record, in words, that it has made no progress for long; "" once it makes progress again."""

    def note_retry(self, message: str) -> None:
        """Show that an attempt failed for a transient cause, and another begins."""

    def show_transfer(self, transfer: Transfer) -> None:
        """Show how far files of it are on their way."""

    def show_connection(self, trouble: str) -> None:
        """Show why nothing is received from its host; "" once that is connected again."""

    def settle(self, published: Mapping[str, Any], arriving: Arriving | None) -> None:
        """End it with its outcome, and what has come of its value. Does not wait."""

    def fail(self, error: ClusterfnError, kind: str = "") -> None:
        """End it with the error of a job that was not accepted, or whose outcome cannot be read. Does not wait.

        Args:
            kind: Of the outcome, if only the value cannot be received, for example because it does not fit here.
        """

    def lose(self, error: ClusterfnError) -> None:
        """End it with the error after which nothing more can be received; the job may continue. Does not wait."""


# The entry replaces one that has ended: reports that come late change nothing.
ENDED = Entry()


class FollowedJob:
    """A job, an element of a group or a call of a session: `Follower` follows it, and `LivenessMonitor` watches it.

    Args:
        host: Its host.
        folder: Its own on the host.
        scheduler_name: Its name in the scheduler's queue.
        bridge: The folder of the bridge that it was sent with; "" for this version's.
        keeps: Whether its value stays on the host until it is asked for.
        results: What is accepted of its value; None for what the host's keys say.

    Attributes:
        entry: Gets all reports; set before anything is sent, and let go at the end.
        attempt: The present attempt.
        scheduler_id: Its id in the scheduler's queue, or its process; "" if that is not known.
        doubt: What the scheduler said at a submission that may have succeeded all the same; None otherwise.
        is_closed: Whether its open requests were cancelled, because nothing of it is wanted any more.
    """

    # Hardly any job changes these, so they are attributes of the class (see `JobStatus`).
    doubt: SubmitError | None = None
    is_closed = False

    def __init__(
        self, host: HostState, folder: str, scheduler_name: str, bridge: str = "", keeps: bool = False,
        results: ResultPolicy | None = None,
    ) -> None:  # fmt: skip
        self.host, self.folder, self.scheduler_name = host, folder, scheduler_name
        self.bridge, self.keeps, self._results = bridge, keeps, results
        self.entry: Entry = ENDED
        self.scheduler_id = ""
        self.attempt = 1

    @property
    def connection(self) -> HostConnection:
        """The connection to its host."""
        return self.host.connection

    @property
    def results(self) -> ResultPolicy:
        """What is accepted of its value."""
        return self._results or self.host.settings.result_policy()

    @property
    def is_fetched_apart(self) -> bool:
        """Whether its value comes only when its outcome is known: it is kept, or its size decides."""
        return self.keeps or self.results.max_bytes is not None

    @property
    def place(self) -> outcome.JobLocation:
        """Where it runs, and what is accepted of its value."""
        return outcome.JobLocation(self.entry.host, self.entry.id, self.folder, self.results)

    @property
    def attempt_folder(self) -> str:
        """The folder of the present attempt."""
        return layout.attempt_dir(self.folder, self.attempt)

    @property
    def work_folder(self) -> str:
        """Where the function runs, unless `cwd` says otherwise."""
        return posixpath.join(self.attempt_folder, layout.WORK)

    def log_path(self, stream: str) -> str:
        """Return a file of the present attempt, such as stdout, or the log of the scheduler."""
        if stream == "scheduler":
            return posixpath.join(self.folder, layout.SCHEDULER_LOG)
        return posixpath.join(self.attempt_folder, stream)

    def cancel_at_scheduler(self) -> object:
        """Take it out of the scheduler's queue, if it is there by itself; does not wait."""
        return None

    def skip_turn(self) -> None:
        """Follow it at once, if it waits for its turn to be followed: it begins, ends, or is asked about."""

    def cannot_conclude(self, error: ClusterfnError) -> None:
        """Take why the host cannot conclude it."""
        raise NotImplementedError


class QueueTracker:
    """What the trackers of jobs and groups have in common: their sending, and their place in the scheduler's queue.

    Args:
        host: The host.
        folder: The job's or the group's on the host.
        scheduler_name: Its name in the scheduler's queue.

    Attributes:
        sending: All that is sent for it, if this process does so.
        laid_out: The answer to the sending of its folder, if this process has sent it.
        starting: What sees its submissions through.
        queue_reason, other_reason: Why it waits for its turn, and what it waits for in addition; "" for nothing.
        inputs: The jobs whose values it takes, as far as this process knows them.
        proof: The file of its folder that is there once all of it has arrived.
    """

    proof = layout.SPEC
    inputs: Sequence[Reference] = ()
    _is_refused = False

    def __init__(self, host: HostState, folder: str, scheduler_name: str) -> None:
        self.host, self.folder, self.scheduler_name = host, folder, scheduler_name
        self.sending: Sending | None = None
        self.laid_out: Reply[bool] | None = None
        self.starting: list[concurrent.futures.Future[None]] = []
        self.queue_reason = self.other_reason = ""

    @property
    def connection(self) -> HostConnection:
        """The connection to its host."""
        return self.host.connection

    @property
    def waiting_reason(self) -> str:
        """Why it waits: its place in the queue, and what it waits for in addition to its turn."""
        reason = "; ".join(filter(None, [self.queue_reason, self.other_reason]))
        if self.host.settings.is_this_machine:
            # While this program computes on a GPU, its own jobs wait for it.
            reason = reason.replace(f"(pid {os.getpid()}, ", f"(this program, pid {os.getpid()}, ")
        return reason

    def show_waiting(self) -> None:
        """Show why it waits."""
        raise NotImplementedError

    def waits_for(self, what: str) -> None:
        """Show what it waits for in addition to its turn, and how far that is; "" for nothing any more."""
        self.other_reason = what
        self.show_waiting()

    def reason_in_queue(self, seen: JobState) -> str:
        """Return why the scheduler lets it wait: for jobs whose values it takes, or for its turn."""
        return (describe_open(self.inputs) if seen.waits_for_jobs else "") or seen.in_words

    def submissions(self) -> Sequence[Reply[Any]]:
        """Return the requests that start it by itself."""
        return ()

    @property
    def waits_here(self) -> bool:
        """Whether its scheduler does not take it for now, so that it waits in this program to be submitted."""
        return self._is_refused and not all(each.done() for each in self.submissions())

    @property
    def refusal_note(self) -> str:
        """The file on the host by which others know that it waits in this program; "" if it does not."""
        return posixpath.join(self.folder, layout.REFUSED) if self.waits_here else ""

    def _note_refusal(self, reason: str) -> None:
        """Say on the host why it is not in the queue, for others who look for it there."""
        self.queue_reason = reason
        self._is_refused = True
        # Without this order the note could be the only file in the folder of the job.
        after = [self.laid_out] if self.laid_out is not None else []
        with contextlib.suppress(HostError):
            self.connection.put(posixpath.join(self.folder, layout.REFUSED), reason.encode(), after=after)

    def _note_acceptance(self) -> None:
        if self._is_refused:
            self._is_refused, self.queue_reason = False, ""
            # Other programs believe the note, so it must go as soon as the scheduler has the job.
            self.connection.run(["rm", "-f", posixpath.join(self.folder, layout.REFUSED)])

    def refusal(self, error: BaseException, what: str) -> ClusterfnError:
        """Return the error of what was not started, with its place; `Cancelled` if it was stopped while it was sent."""
        host = self.host.settings.name
        if self.sending is not None and self.sending.dropped:
            message = f"the {what} was stopped while it was being sent: nothing ran on {host}"
            return Cancelled(message, host=host, stage="submit")
        refused = error if isinstance(error, ClusterfnError) else SubmitError(str(error), stage="submit")
        refused.host, refused.stage = host, refused.stage or "submit"
        return refused

    def _remove_folder(self) -> None:
        # The connection was closed.
        with contextlib.suppress(HostError):
            remote_files.remove_folder(self.connection, self.folder)

    def withdraw_submissions(self) -> None:
        """Submit nothing again: in the queue after it was cancelled, it would run all the same."""
        for each in list(self.submissions()):
            if isinstance(each, PendingSubmission):
                each.withdraw()

    def stop_waiting(self) -> None:
        """Take note that it has ended: nothing of it waits any more."""
        if self.inputs:
            self.inputs = ()
        self.host.unwatch(self.scheduler_name)
        # Another program may have cancelled it before its scheduler had room for it.
        self.withdraw_submissions()

    def await_submissions(self) -> None:
        """Submit nothing again, and wait for answers that are due: a scheduler cannot cancel what it does not know.

        A host without a scheduler may still have hundreds of jobs to start, so only the folder is awaited. A job that
        has an outcome there is not started.
        """
        # Another thread forgets the request once the host has answered.
        laid_out = self.laid_out
        if laid_out is not None:
            laid_out.exception(_TIMEOUT_S)
        if not self.host.scheduler.has_nodes:
            return
        self.withdraw_submissions()
        what = f"waiting for {self.host.settings.name} to answer the submission of {self.scheduler_name}"
        for starting in list(self.starting):
            loop.result(starting, what, _TIMEOUT_S)

    def open_requests(self) -> list[Reply[Any]]:
        """Return the requests after which its folder is on the host, and its scheduler knows it."""
        # Without a scheduler, the request that submits the job ends only with the job itself.
        sent = [self.laid_out, *(self.submissions() if self.host.scheduler.has_nodes else ())]
        return [each for each in sent if each is not None and not each.done()]

    def unanswered(self, since: float) -> str:
        """Say who has not taken or started it yet, if it was sent longer ago than a moment; "" otherwise.

        Args:
            since: When it was sent, by the monotonic clock.
        """
        silent_s, rules, host = time.monotonic() - since, self.host.scheduler_rules, self.host.settings.name
        if silent_s < TAKES_S or self._is_refused:
            return ""
        is_there = self.laid_out is None or self.laid_out.done()
        if is_there and all(each.done() for each in self.submissions()):
            return ""
        if is_there and not rules.has_nodes:
            # Few jobs begin there at a time.
            return f"{host} has not started it for {silent_s:.0f} s"
        return f"{f'{rules.title} on {host}' if is_there else host} has not taken it for {silent_s:.0f} s"

    def cancel_at_scheduler(self) -> Reply[Completed] | None:
        """Take it out of the scheduler's queue, or have it send its signal; does not wait."""
        argv = self.host.scheduler.cancel_command(self.scheduler_name)
        if not argv:
            return None
        reply = self.run(argv)
        exit_flush.await_at_exit(reply)
        return reply

    def run(self, argv: Sequence[str]) -> Reply[Completed]:
        """Run a command of the scheduler."""
        return self.connection.run(argv, unset=self.host.scheduler.unset)

    def _stop_sending(self) -> bool:
        """Stop sending it; false if all of it is on the host."""
        last = posixpath.join(self.folder, self.proof)
        if self.sending is None or not self.sending.drop(self.connection, last, _DROP_S):
            return False
        for each in list(self.submissions()):
            if isinstance(each, PendingSubmission):
                each.drop()
        return True


class JobBackend(QueueTracker, FollowedJob):
    """What is asked of whatever follows a job, or a call of a session, by its `JobEntry` and its `Job`."""

    def withdraw(self) -> bool:
        """Keep the job from ever starting; false if it has started."""
        raise NotImplementedError

    def stop(self, on_left: Callable[[str], object]) -> None:
        """Withdraw the job, or end it with its whole process tree; `on_left` takes the names of processes that stay."""
        raise NotImplementedError

    def show(self, job: Any) -> Any:
        """Show a `Job` until it has ended: what it prints, and why it waits; return its value."""
        raise NotImplementedError

    def why_silent(self) -> str:
        """Say why nothing is known of it while it waits."""
        return f"{self.host.settings.name} has said nothing of it yet"

    def watch_output(self, on_output: Callable[[str, bytes], Any]) -> Reply[bytes]:
        """Give what the present attempt prints, and later ones, to `on_output`, with the stream's name."""
        raise NotImplementedError


def is_from_host(error: BaseException) -> bool:
    """Whether the host itself refused: one that can no longer be asked may have started the job."""
    return isinstance(error, (SubmitError, Unsatisfiable)) or (isinstance(error, HostError) and bool(error.kind))
