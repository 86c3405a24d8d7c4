"""Asks the host to conclude a job that ended without a word: a killed node, a restarted host, an impossible request.

A verdict from outside needs two witnesses: the scheduler (or the process table) says that the job is gone, and its
heartbeat is silent or never began. Even then it is the host that publishes, by the same link as everybody, or finds
that the job has spoken. Made by `tracker`; its callbacks run on the connection's reader thread, so nothing here waits.
"""

from __future__ import annotations

import json
import posixpath
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError, HostDiskFull
from clusterfn.hosts.connection import Completed, Reply
from clusterfn.hosts.rpc.failures import error_of
from clusterfn.hosts.scheduler_watch import Seen, Silent
from clusterfn.scheduler import base
from clusterfn.scheduler.base import Evidence, Verdict

if TYPE_CHECKING:
    from clusterfn.calls.job_tracker import Tracker

SILENT_AFTER_S = 2 * layout.HEARTBEAT_S + 2
_LOOKS = 2
_LOOKS_UNSEEN = 4  # of a job that somebody else may be submitting at this moment: for more than a minute
_LOG_TAIL = 4000
_BEGIN_S = 15.0
_ROOM_S = 5.0  # between two tries on a full disk


class Witness:
    """What is seen of one job from outside.

    Args:
        tracker: The job as it is followed.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._still: Reply[None] | None = None
        self._gone = 0
        self._hopeless = 0
        self._ended = False
        self._unanswered = 0
        self._on_helpless: Callable[[ClusterfnError], None] | None = None

    def call_if_helpless(self, on_helpless: Callable[[ClusterfnError], None]) -> None:
        """Whom to tell that the host cannot conclude the job."""
        self._on_helpless = on_helpless

    def listen(self) -> None:
        """Hear of it when the heartbeat of the present attempt stands still."""
        if self._still is not None:
            self._still.cancel()
        self._still = self._tracker.connection.still(self._heartbeat, SILENT_AFTER_S, self._silent)

    def end(self) -> None:
        """The job has spoken."""
        self._ended = True
        self._on_helpless = None
        if self._still is not None:
            self._still.cancel()

    @property
    def _heartbeat(self) -> str:
        return posixpath.join(self._tracker.attempt_folder, layout.HEARTBEAT)

    def scheduler_said(self, seen: Seen) -> None:
        """Count the looks at which the job could never start, or was gone; two in a row are believed."""
        if isinstance(seen, Silent):
            return
        verdict = None if seen is None else self._tracker.session.scheduler.hopeless(seen)
        self._hopeless = self._hopeless + 1 if verdict is not None else 0
        if verdict is not None and self._hopeless == _LOOKS:
            self.conclude_and_cancel(verdict)
        self._gone = self._gone + 1 if seen is None or seen.phase == base.FINAL else 0
        if self._gone >= (_LOOKS if self._tracker.scheduler_id or self._tracker.doubt else _LOOKS_UNSEEN):
            self.process_ended()

    def process_ended(self) -> None:
        """The job's script is gone. If its heartbeat ever began, that will tell; else nobody is left to."""
        if self._ended:
            return
        _then(self._tracker.connection.have([self._heartbeat]), lambda there: None if there[0] else self._ask())

    def look_until_it_begins(self) -> None:
        """Somebody else started the job, or was about to; nobody tells this process how that went."""
        if not self._ended:
            _then(
                self._tracker.connection.have([self._heartbeat]), lambda there: None if there[0] else self._ask_again()
            )

    def _ask_again(self) -> None:
        self._ask()
        again = threading.Timer(_BEGIN_S, self.look_until_it_begins)
        again.daemon = True
        again.start()

    def _silent(self) -> None:
        self._tracker.session.watch.look_now()
        self._ask()

    def _ask(self) -> None:
        """Ask the second witness about the submission that holds the claim: another of this job has long ended."""
        if self._ended:
            return
        tracker = self._tracker
        claim = tracker.connection.run(["cat", posixpath.join(tracker.folder, layout.CLAIM)])
        _then(claim, lambda read: self._ask_about(read.out.decode("ascii", "replace").strip() or tracker.scheduler_id))

    def _ask_about(self, submission: str) -> None:
        tracker, scheduler = self._tracker, self._tracker.session.scheduler
        tracker.scheduler_id = tracker.scheduler_id or submission
        if not submission:
            self._never_seen()
            return
        log = tracker.connection.run(["tail", "-c", str(_LOG_TAIL), tracker.log_path("scheduler")])
        answer = tracker.connection.run(scheduler.evidence_command(submission), unset=scheduler.unset)
        _then(log, lambda tail: _then(answer, lambda said: self._explain(said, tail, submission)))

    def _never_seen(self) -> None:
        """Neither a claim nor a number, and the looks by name found nothing: it was never submitted."""
        if self._tracker.session.scheduler.knows_all:
            self._never_began("the scheduler does not know the job, and it never began")
            return
        spec = posixpath.join(self._tracker.folder, layout.SPEC)
        old = self._tracker.connection.run(["find", spec, "-mmin", "+1"])  # younger ones may be about to start
        _then(old, lambda found: self._never_began("the job was sent and never began") if found.out else None)

    def _never_began(self, message: str) -> None:
        verdict = Verdict(layout.LOST, message, hint="call the function again", stage="submit", withdraw=True)
        self.conclude(verdict).add_done_callback(self._hear)

    def _explain(self, said: Completed, log: Completed, submission: str) -> None:
        text = (said.out + said.err).decode("utf-8", "replace")
        evidence = Evidence(text, log.out.decode("utf-8", "replace"), submission)
        verdict = self._tracker.session.scheduler.explain(evidence)
        if verdict is not None and not self._ended:
            self.conclude(verdict).add_done_callback(self._hear)

    def conclude_and_cancel(self, verdict: Verdict) -> None:
        """Have it published, and the job taken out of the queue; one that has begun meanwhile goes on."""
        concluded = self.conclude(verdict)
        _then(concluded, lambda answer: None if _has_begun(answer) else self._tracker.cancel_at_scheduler())
        concluded.add_done_callback(self._hear)

    def _hear(self, concluded: Reply[Completed]) -> None:
        """What came of it; where the host gave no answer, the next silence asks again."""
        error = concluded.exception()
        if isinstance(error, HostDiskFull):  # the bridge that it needs finds no room
            self._cannot(error)
        elif error is None:
            try:
                self.standing(concluded.result(0))
                self._unanswered = 0
            except ClusterfnError as unable:
                self._cannot(unable)

    def _cannot(self, error: ClusterfnError) -> None:
        """A host that twice in a row cannot conclude has no room, or has lost the bridge or the job's folder."""
        self._unanswered += 1
        if self._ended or self._unanswered > _LOOKS:
            return
        if self._unanswered == _LOOKS:
            if self._on_helpless is not None:
                self._on_helpless(error)
            return
        again = threading.Timer(_ROOM_S if isinstance(error, HostDiskFull) else 0.0, self.process_ended)
        again.daemon = True
        again.start()

    def standing(self, answer: Completed) -> dict[str, Any]:
        """What `conclude` said now stands; raises as `standing`."""
        return standing(answer, self._tracker.session.host, self._tracker.folder)

    def conclude(self, verdict: Verdict) -> Reply[Completed]:
        """Ask the host to publish this verdict, unless the job has spoken."""
        tracker, asked = self._tracker, json.dumps(verdict.as_dict()).encode()
        return tracker.session.supervise("conclude", tracker.folder, bridge=tracker.bridge, stdin=asked)


def _then(reply: Reply[Any], use: Callable[[Any], Any]) -> None:
    """Use an answer when it comes; where the host gave none, the next silence asks again."""

    def answered(done: Reply[Any]) -> None:
        if done.exception() is None:
            use(done.result(0))

    reply.add_done_callback(answered)


def _has_begun(answer: Completed) -> bool:
    """Whether nothing was published because the job runs."""
    try:
        told = json.loads(answer.out.splitlines()[-1])
        return told["attempt"] is None and "full" not in told
    except (ValueError, IndexError, KeyError):
        return False


def standing(answer: Completed, host: Host, folder: str, what: str = "job") -> dict[str, Any]:
    """What `conclude` said now stands.

    Raises:
        HostDiskFull: The host had no room to write it down.
        ClusterfnError: It said nothing that can be read.
    """
    said = (answer.out + answer.err).decode("utf-8", "replace").splitlines()[-5:]
    try:
        told: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    except (ValueError, IndexError):
        log = posixpath.join(folder, layout.SCHEDULER_LOG)
        raise ClusterfnError(
            f"the host could not conclude the {what}", host=host.name, stage="supervisor", evidence=said, log=log,
            hint=f"look at the log on {host.name}, and call again",
        ) from None  # fmt: skip
    if "full" in told:
        raise error_of(host, told["full"])
    return told
