"""Notices that a job or elements of a group died without an outcome, and asks the host to publish one.

Reasons are a killed node, a restarted host, an impossible request.

A job is given up only on two signs. The scheduler (or the process table) says that it is gone, and its heartbeat has
stopped or never began. Even then the host publishes the outcome, by the same link as the job itself would, or finds
that the job has published its own. Callbacks run on the connection's reader thread, so nothing here waits.
"""

from __future__ import annotations

import json
import posixpath
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from clusterfn.bridge import job_states, layout
from clusterfn.calls import silent_jobs
from clusterfn.config.host_text import reading
from clusterfn.errors import ClusterfnError, HostDiskFull, SubmitError
from clusterfn.hosts.rpc.frames import error_of
from clusterfn.hosts.scheduler_watch import LookCounter, Seen, Silent
from clusterfn.scheduler.base import RUNNING, Evidence, SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.calls.group_state import GroupState
    from clusterfn.config.spec import Host
    from clusterfn.hosts.connection import Completed, HostConnection, Reply
    from clusterfn.hosts.host_state import HostState

SILENT_AFTER_S = job_states.SILENT_AFTER_S
LOOKS = 2
LOOKS_UNSEEN = 4  # of a job that another process may be submitting at this moment: for more than a minute
_BEGIN_S = 15.0
_ENDS_S, _ENDS_TIMES = 2.0, 8
_ROOM_S = 5.0  # between two tries on a full disk
_EVIDENCE_S = 60.0  # between two questions to a controller about one silent element
_GROUP_TIMEOUT_S = 600.0  # thousands of items
STOPPED = SchedulerVerdict(layout.CANCELLED, "the group was stopped on request", stage="queue")
WITHDRAWN = SchedulerVerdict(layout.CANCELLED, "the item was withdrawn before it started", stage="queue")
NEVER_BEGAN = SchedulerVerdict(layout.LOST, "the items were sent but never started", hint="group.retry_failed()")
_FORGOTTEN = SchedulerVerdict(
    layout.LOST, "the scheduler no longer knows the group's elements, and they never started",
    hint="group.retry_failed()", stage="submit",
)  # fmt: skip


class MonitoredJob(Protocol):
    """What a `LivenessMonitor` needs to know of its job; a `Tracker` has all of it."""

    session: HostState
    bridge: str
    folder: str
    scheduler_id: str
    doubt: SubmitError | None

    @property
    def connection(self) -> HostConnection:
        """The connection to the job's host."""

    @property
    def attempt_folder(self) -> str:
        """The folder of the present attempt."""

    def log_path(self, stream: str) -> str:
        """Return the file of stdout, stderr or the scheduler."""

    def cancel_at_scheduler(self) -> object:
        """Ask the scheduler to take the job out of its queue."""


class LivenessMonitor:
    """Weighs what the scheduler and the heartbeat say of one job.

    Args:
        tracker: What follows the job.
    """

    def __init__(self, tracker: MonitoredJob) -> None:
        self._tracker = tracker
        self._still: Reply[None] | None = None
        self._looks = LookCounter()
        self._looking: Reply[list[bool]] | None = None  # for its heartbeat
        self._concluding: Reply[Completed] | None = None
        self._ended = False
        self._is_listed = self._is_silent = False
        self._ask_from = 0.0
        self._unanswered = 0
        self._on_cannot_conclude: Callable[[ClusterfnError], None] | None = None
        self._on_silent: Callable[[], None] | None = None

    def call_if_cannot_conclude(self, on_cannot_conclude: Callable[[ClusterfnError], None]) -> None:
        """Set what is called if the host cannot conclude the job."""
        self._on_cannot_conclude = on_cannot_conclude

    def call_if_silent(self, on_silent: Callable[[], None]) -> None:
        """Set what is called each time that no heartbeat has come for `SILENT_AFTER_S`."""
        self._on_silent = on_silent

    def expect_looks(self) -> None:
        """Take note that each look at the scheduler will be reported, with what it says of this job alone."""
        self._is_listed = self._tracker.session.scheduler.knows_all

    def watch_heartbeat(self) -> None:
        """Watch for the heartbeat of the present attempt to stop."""
        if self._still is not None:
            self._still.cancel()
        ended = posixpath.join(self._tracker.attempt_folder, layout.OUTCOME)  # whose news may be on its way
        self._still = self._tracker.connection.still(self._heartbeat, SILENT_AFTER_S, self._silent, unless=ended)

    def end(self) -> None:
        """Stop monitoring: the job has an outcome."""
        self._ended = True
        self._on_cannot_conclude = self._on_silent = None
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
        verdict = self._looks.count(seen, self._tracker.session.scheduler)
        if verdict is not None and self._looks.hopeless == LOOKS:
            self.conclude_and_cancel(verdict)
        if self._looks.gone >= (LOOKS if self._tracker.scheduler_id or self._tracker.doubt else LOOKS_UNSEEN):
            self.process_ended()

    def process_ended(self) -> None:
        """Take note that the job's script has ended; if its heartbeat never began, nothing else would report it."""
        if self._ended or (self._looking is not None and not self._looking.done()):
            return
        self._looking = self._tracker.connection.have([self._heartbeat])
        _then(self._looking, lambda there: None if there[0] else self._ask())

    def look_until_it_begins(self) -> None:
        """Ask again and again until the job begins: another process submits it, and does not report how that went."""
        if not self._ended:
            _then(
                self._tracker.connection.have([self._heartbeat]), lambda there: None if there[0] else self._ask_again()
            )

    def look_until_it_ends(self, times: int = _ENDS_TIMES) -> None:
        """Ask a few times whether it is gone: its scheduler was asked to kill it."""
        if not self._ended and times:
            self._ask()
            again = threading.Timer(_ENDS_S, self.look_until_it_ends, (times - 1,))
            again.daemon = True
            again.start()

    def _ask_again(self) -> None:
        self._ask()
        again = threading.Timer(_BEGIN_S, self.look_until_it_begins)
        again.daemon = True
        again.start()

    def _silent(self) -> None:
        """Look for the job, or have it asked about: either answers for all jobs that are silent together."""
        if self._on_silent is not None:
            self._on_silent()
        session, now = self._tracker.session, time.monotonic()
        session.watch.look_now()
        if self._is_listed:
            self._is_silent = True
        elif now >= self._ask_from:
            self._ask_from = now + _EVIDENCE_S if session.scheduler.has_nodes else 0.0
            self._ask()

    def _ask(self) -> None:
        """Have the host asked about it, together with others."""
        if not self._ended:
            silent_jobs.of_host(self._tracker.session).ask(self)

    # as a `silent_jobs.SilentJob`

    @property
    def folder(self) -> str:
        """The job's."""
        return self._tracker.folder

    @property
    def is_over(self) -> bool:
        """Whether its outcome is known."""
        return self._ended

    def log_path(self) -> str:
        """Return the scheduler's log."""
        return self._tracker.log_path("scheduler")

    def claimed_by(self, claim: str) -> str:
        """Take what its claim holds, "" without one; return the submission to ask about, "" if there is none."""
        submission = claim or self._tracker.scheduler_id
        self._tracker.scheduler_id = self._tracker.scheduler_id or submission
        if not submission and not self._ended:
            self._never_seen()
        return submission

    def explain(self, said: str, log: str, submission: str) -> SchedulerVerdict | None:
        """Return what has ended it; None if it may live."""
        return self._tracker.session.scheduler.explain(Evidence(said, log, submission))

    def _never_seen(self) -> None:
        """Conclude a job without a claim or an id that no look by its name has found: it was never submitted."""
        if self._tracker.session.scheduler.knows_all:
            message = "the scheduler does not know the job, and it never started"
            unless_refused(self._tracker.connection, self._tracker.folder, lambda: self._never_began(message))
            return
        spec = posixpath.join(self._tracker.folder, layout.SPEC)
        old = self._tracker.connection.run(["find", spec, "-mmin", "+1"])  # younger ones may be about to start
        _then(old, lambda found: self._never_began("the job was sent but never started") if found.out else None)

    def _never_began(self, message: str) -> None:
        verdict = SchedulerVerdict(layout.LOST, message, hint="call the function again", stage="submit", withdraw=True)
        self.conclude(verdict).add_done_callback(self.on_concluded)

    def conclude_and_cancel(self, verdict: SchedulerVerdict) -> None:
        """Have this published, and the job taken out of the queue; if it has begun meanwhile it continues.

        Does nothing while the host has not answered that before: each look at its scheduler may ask for it.
        """
        if self._concluding is not None and not self._concluding.done():
            return
        concluded = self._concluding = self.conclude(verdict)
        _then(concluded, lambda answer: None if _has_begun(answer) else self._tracker.cancel_at_scheduler())
        concluded.add_done_callback(self.on_concluded)

    def on_concluded(self, concluded: Reply[Completed]) -> None:
        """Check the answer; if the host gave none, the next missed heartbeat asks again."""
        error = concluded.exception()
        if isinstance(error, HostDiskFull):  # the bridge that it needs finds no room
            self._retry_or_give_up(error)
        elif error is None:
            try:
                self.parse_conclusion(concluded.result(0))
                self._unanswered = 0
            except ClusterfnError as unable:
                self._retry_or_give_up(unable)

    def _retry_or_give_up(self, error: ClusterfnError) -> None:
        """Give up after two failures in a row: the disk is full, or the bridge or the job's folder is gone."""
        self._unanswered += 1
        if self._ended or self._unanswered > LOOKS:
            return
        if self._unanswered == LOOKS:
            self._give_up(error)
            return
        self._tracker.session.contents.forget()  # the bridge may be what is gone
        again = threading.Timer(_ROOM_S if isinstance(error, HostDiskFull) else 0.0, self.process_ended)
        again.daemon = True
        again.start()

    def _give_up(self, error: ClusterfnError) -> None:
        """Report the error, or that the job's files are gone."""
        folder, host = self._tracker.folder, self._tracker.session.host.name

        def looked(reply: Reply[list[bool]]) -> None:
            is_gone = reply.exception(0) is None and not reply.result(0)[0]
            gone = ClusterfnError(
                f"{host} has lost the job's files: its root was removed, or another file system is there",
                stage="supervisor", evidence=[f"there is no {folder}"],
                hint=f"check {self._tracker.session.root} on {host}, and call again",
            )  # fmt: skip
            if self._on_cannot_conclude is not None:
                self._on_cannot_conclude(gone if is_gone else error)

        self._tracker.connection.have([folder]).add_done_callback(looked)

    def parse_conclusion(self, answer: Completed) -> dict[str, Any]:
        """Read the answer to `conclude`; raises as the function `parse_conclusion`."""
        return parse_conclusion(answer, self._tracker.session.host, self._tracker.folder)

    def conclude(self, verdict: SchedulerVerdict) -> Reply[Completed]:
        """Ask the host to publish this verdict, unless the job has an outcome."""
        tracker, asked = self._tracker, json.dumps(verdict.as_dict()).encode()
        return tracker.session.supervise("conclude", tracker.folder, bridge=tracker.bridge, stdin=asked)


def _then(reply: Reply[Any], use: Callable[[Any], Any]) -> None:
    """Use an answer when it comes; if the host gave none, the next missed heartbeat asks again."""

    def answered(done: Reply[Any]) -> None:
        if done.exception() is None:
            use(done.result(0))

    reply.add_done_callback(answered)


def unless_refused(connection: HostConnection, folder: str, use: Callable[[], object]) -> None:
    """Call `use`, unless a program has lately said that it will submit the job, which the scheduler refuses for now."""
    note = posixpath.join(folder, layout.REFUSED)
    asked = connection.run(["find", note, "-mmin", f"-{layout.REFUSED_FOR_S / 60:.0f}"])
    _then(asked, lambda found: None if found.out else use())


def _has_begun(answer: Completed) -> bool:
    try:
        told = json.loads(answer.out.splitlines()[-1])
        return told["attempt"] is None and "full" not in told
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def parse_conclusion(answer: Completed, host: Host, folder: str, what: str = "job") -> dict[str, Any]:
    """Read which outcome is published now, from the answer to `conclude`.

    Raises:
        HostDiskFull: The host had no disk space to write it.
        ClusterfnError: The answer cannot be read.
    """
    said = (answer.out + answer.err).decode("utf-8", "replace").splitlines()[-5:]
    try:
        told: dict[str, Any] = dict(json.loads(answer.out.splitlines()[-1]))
    except (ValueError, TypeError, IndexError, RecursionError):
        log = posixpath.join(folder, layout.SCHEDULER_LOG)
        ended = f"exit status {answer.rc}" if answer.rc is not None else f"signal {answer.signal}"
        said = said or [f"its program printed nothing and ended with {ended}"]
        raise ClusterfnError(
            f"the host could not conclude the {what}", host=host.name, stage="supervisor", evidence=said, log=log,
            hint=f"read the log on {host.name}, and call again",
        ) from None  # fmt: skip
    if "full" in told:
        with reading(host.name, "why its disk is full"):
            raise error_of(host, told["full"])
    return told


# of a group


def fail_unfinished_items(
    session: HostState, group: GroupState, folder: str, bridge: str, verdict: SchedulerVerdict
) -> Reply[Completed]:
    """Give every item without an element this verdict, in the journal of the element in that folder; does not wait."""
    asked = json.dumps(verdict.as_dict()).encode()
    reply = session.supervise("bury", folder, bridge=bridge, stdin=asked, timeout_s=_GROUP_TIMEOUT_S)
    reply.add_done_callback(lambda answer: _on_answer(session, group, answer))
    return reply


def _on_answer(session: HostState, group: GroupState, reply: Reply[Completed]) -> None:
    error = reply.exception()
    if error is None and reply.result(0).rc != 0:
        try:
            parse_conclusion(reply.result(0), session.host, group.folder, "group")
        except ClusterfnError as unable:
            error, unable.job = unable, group.id
    if error is not None:
        group.on_refused(error if isinstance(error, ClusterfnError) else cannot_conclude_error(group, str(error)))


def cannot_conclude_error(group: GroupState, message: str) -> ClusterfnError:
    """Return the error of a group whose host cannot conclude it."""
    return ClusterfnError(message, host=group.host, job=group.id, stage="supervisor")


def explain_unstarted(
    session: HostState, folder: str, scheduler_ids: Sequence[str], doubt: SubmitError | None,
    then: Callable[[SchedulerVerdict], object],
) -> Reply[Completed] | None:  # fmt: skip
    """Find out from the scheduler why elements that have not begun never will, and pass the verdict on.

    Passes nothing on while the scheduler says that one of them may live, or does not answer. Returns the question.

    Args:
        folder: The group's.
        scheduler_ids: Those of all submissions that are known. Without any, no look has found one.
        doubt: What the scheduler said at a submission that may have succeeded all the same.
    """
    if not scheduler_ids:
        unless_refused(session.connection, folder, lambda: then(_never_submitted(doubt) if doubt else _FORGOTTEN))
        return None
    scheduler, first = session.scheduler, scheduler_ids[0]

    def answered(said: Completed) -> None:
        text = (said.out + said.err).decode("utf-8", "replace")
        verdict = scheduler.explain(Evidence(text, "", first))
        if verdict is not None and len(scheduler_ids) == 1:  # more elements may wait in another program
            unless_refused(session.connection, folder, lambda: then(verdict))
        elif verdict is not None:
            explain_unstarted(session, folder, scheduler_ids[1:], doubt, then)

    asked = session.connection.run(scheduler.evidence_command(first), unset=scheduler.unset)
    _then(asked, answered)
    return asked


def _never_submitted(doubt: SubmitError) -> SchedulerVerdict:
    message = f"the scheduler does not know the group's elements, and they never started: {doubt.message}"
    return SchedulerVerdict(layout.LOST, message, tuple(doubt.evidence), "group.retry_failed()", stage="submit")
