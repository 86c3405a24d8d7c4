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

from clusterfn import layout
from clusterfn.errors import ClusterfnError
from clusterfn.host import Completed, Reply
from clusterfn.scheduler import base
from clusterfn.scheduler.base import Evidence, Verdict
from clusterfn.watch import Seen, Silent

if TYPE_CHECKING:
    from clusterfn.tracker import Tracker

SILENT_AFTER_S = 2 * layout.HEARTBEAT_S + 2
_LOOKS = 2
_LOOKS_UNSEEN = 4  # of a job that somebody else may be submitting at this moment: for more than a minute
_LOG_TAIL = 4000
_BEGIN_S = 15.0


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

    def listen(self, on_helpless: Callable[[ClusterfnError], None]) -> None:
        """Hear of it when the heartbeat stands still; `on_helpless` hears when the host cannot conclude the job."""
        self._on_helpless = on_helpless
        self.listen_again()

    def listen_again(self) -> None:
        """The same for another attempt."""
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
        _then(self.conclude(verdict), self._hear)

    def _explain(self, said: Completed, log: Completed, submission: str) -> None:
        text = (said.out + said.err).decode("utf-8", "replace")
        evidence = Evidence(text, log.out.decode("utf-8", "replace"), submission)
        verdict = self._tracker.session.scheduler.explain(evidence)
        if verdict is not None and not self._ended:
            _then(self.conclude(verdict), self._hear)

    def conclude_and_cancel(self, verdict: Verdict) -> None:
        """Have it published, and the job taken out of the queue; one that has begun meanwhile goes on."""
        concluded = self.conclude(verdict)
        _then(concluded, lambda answer: None if _has_begun(answer) else self._tracker.cancel_at_scheduler())
        _then(concluded, self._hear)

    def _hear(self, answer: Completed) -> None:
        """A host that twice in a row cannot conclude has lost the bridge or the job's folder: nobody will."""
        try:
            standing(answer)
            self._unanswered = 0
        except ClusterfnError as error:
            self._unanswered += 1
            if self._on_helpless is not None and self._unanswered >= _LOOKS:
                self._on_helpless(error)
            else:
                self.process_ended()

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
        return standing(answer)["attempt"] is None
    except (ClusterfnError, KeyError):
        return False


def standing(answer: Completed) -> dict[str, Any]:
    """What `conclude` said now stands.

    Raises:
        ClusterfnError: It said nothing that can be read.
    """
    try:
        told: dict[str, Any] = json.loads(answer.out.splitlines()[-1])
    except (ValueError, IndexError):
        said = (answer.out + answer.err).decode("utf-8", "replace").splitlines()[-5:]
        raise ClusterfnError("the host could not conclude the job", stage="supervisor", evidence=said) from None
    return told
