"""Follows one job on its host, through all its attempts, and tells `Job` what happens.

Everything it learns is read from the job's own files; it concludes nothing itself (`witness` asks the host to
conclude). Its callbacks run on the connection's reader thread, so they must not wait for an answer. Made by
`dispatch`.
"""

from __future__ import annotations

import copy
import json
import posixpath
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.calls import outcome
from clusterfn.calls.liveness import Witness
from clusterfn.errors import ClusterfnError, HostDiskFull, HostError, JobError, ResultError, SubmitError
from clusterfn.hosts import exit_flush
from clusterfn.hosts.connection import Completed, HostConnection, Reply, State
from clusterfn.hosts.host_state import Session
from clusterfn.hosts.scheduler_watch import Seen, Silent
from clusterfn.hosts.transfer import Sending, Transfer
from clusterfn.scheduler import base
from clusterfn.scheduler.base import Verdict

if TYPE_CHECKING:
    from clusterfn.calls.job import Job

PENDING, STARTING, RUNNING = "PENDING", "STARTING", "RUNNING"
_STATES = {"pending": PENDING, "starting": STARTING, "running": RUNNING}
_UNREACHABLE = "the scheduler is unreachable"
_TIMEOUT_S = 60.0
_DROP_S = 15.0


class Tracker:
    """One job as seen from here.

    Args:
        session: Its host.
        job_id: Its id.
        name: The function's name.
        live: Whether what it prints is followed.
        bridge: The folder of the bridge that it was sent with; "" for this version's.

    Attributes:
        laid_out: The answer to the sending of its folder, if this process has sent it.
        sending: All that is sent for it, if this process does so.
        heard: Bytes of the present attempt's events that have come.
        doubt: What the scheduler said at a submission that may have succeeded all the same; None otherwise.
    """

    def __init__(self, session: Session, job_id: str, name: str, live: bool = False, bridge: str = "") -> None:
        self.session = session
        self.bridge = bridge
        self.folder = layout.job_dir(session.root, job_id)
        self.scheduler_name = layout.job_name(name, job_id)
        self.scheduler_id = ""
        self.doubt: SubmitError | None = None
        self.attempt = 1
        self.heard = 0
        self.live = live
        self.submission: Reply[Any] | None = None
        self.laid_out: Reply[bool] | None = None
        self.sending: Sending | None = None
        self.witness = Witness(self)
        self._follows: list[Reply[Any]] = []
        self._unwatch: Callable[[], None] | None = None
        self._arriving: outcome.Arriving | None = None
        self._partial = b""
        self._turn = self._besides = ""
        self._ended: set[int] = set()
        self._receiving: Transfer

    @property
    def connection(self) -> HostConnection:
        """The connection to the job's host."""
        return self.session.connection

    @property
    def attempt_folder(self) -> str:
        """The folder of the present attempt."""
        return layout.attempt_dir(self.folder, self.attempt)

    @property
    def work_folder(self) -> str:
        """Where the function runs, unless `cwd` says otherwise."""
        return posixpath.join(self.attempt_folder, layout.WORK)

    def log_path(self, stream: str) -> str:
        """The file of stdout, stderr or the scheduler."""
        if stream == "scheduler":
            return posixpath.join(self.folder, layout.SCHEDULER_LOG)
        return posixpath.join(self.attempt_folder, stream)

    def started(self, job: Job[Any], scheduler_id: str) -> None:
        """The scheduler has the job: look at it there, and at its heartbeat."""
        self.scheduler_id = self.scheduler_id or scheduler_id
        if self.session.scheduler.knows_all:
            self.queued(job)
        self.witness.call_if_helpless(lambda error: self._cannot_conclude(job, error))
        self.witness.listen()

    def queued(self, job: Job[Any]) -> None:
        """It is in the scheduler's hands: look at it there."""
        self.session.watch.add(self.scheduler_name, lambda seen: self.on_scheduler(job, seen))

    def _cannot_conclude(self, job: Job[Any], error: ClusterfnError) -> None:
        """The job's script is gone, and the host has no room, or has lost the means, to say how it ended."""
        self.end()
        if not isinstance(error, HostDiskFull):
            self.session.distrust()
        error.host, error.job = self.session.host.name, job.id
        job.on_refused(error)

    def attach(self, job: Job[Any], claim: bytes, started: bytes) -> None:
        """Follow a job that somebody else sent, from its first attempt on.

        Args:
            claim, started: What these files of the job hold; b"" for one that is not there.
        """
        submission = claim.decode("ascii", "replace").strip()
        self.follow(job, 1)
        self.started(job, submission or _script_id(started.decode("utf-8", "replace")))
        if not submission and not self.session.scheduler.knows_all:
            self.queued(job)
            self.witness.look_until_it_begins()

    def follow(self, job: Job[Any], attempt: int) -> None:
        """Follow an attempt from its beginning: its events, what it prints, its outcome."""
        self.attempt = attempt
        self._watch_connection(job)
        self._partial, self.heard = b"", 0
        folder, connection = self.attempt_folder, self.connection
        self._follows = [
            connection.follow(posixpath.join(folder, layout.EVENTS), lambda data: self._on_events(job, data))
        ]
        if self.live:
            self._follows += [self._follow_output(job, name) for name in (layout.STDOUT, layout.STDERR)]
        arriving = self._arriving = outcome.Arriving(outcome.Place(job.host, job.id, self.folder))
        waiting = connection.wait(
            posixpath.join(folder, layout.OUTCOME),
            with_files=[(posixpath.join(folder, layout.VALUE), arriving.take)],
            drain=self._follows,
            on_content=arriving.announce,
        )
        self._receiving = Transfer("receiving its value:", [waiting])
        waiting.add_done_callback(lambda reply: self._on_outcome(job, reply))

    def _watch_connection(self, job: Job[Any]) -> None:
        """Let the job say so while its host cannot be heard."""
        if self._unwatch is None:
            connection = self.connection
            self._unwatch = connection.on_state(lambda state: job.on_connection(_trouble(job.host, state)))
            job.on_connection(_trouble(job.host, connection.state))

    def _follow_output(self, job: Job[Any], name: str) -> Reply[Any]:
        return self.connection.follow(posixpath.join(self.attempt_folder, name), lambda data: job.tell(name, data))

    def _on_events(self, job: Job[Any], data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for event in map(_event, lines):
            if event.get("event") == "stage" and event.get("stage") == "result":
                job.on_state(job.state, "its value is on the way")
                job.on_transfer(self._receiving)
            elif event.get("event") in ("quiet", "active"):
                job.on_quiet(event.get("reason", "") if event["event"] == "quiet" else "", event.get("item", ""))
            elif event.get("event") in _STATES:
                job.on_state(_STATES[event["event"]], event.get("reason") or event.get("node") or "")
        self.heard += len(data)

    def on_scheduler(self, job: Job[Any], seen: Seen) -> None:
        """What the scheduler said of the job at one look."""
        if job.state != PENDING and not self.session.scheduler.knows_all:
            self.session.unwatch(self.scheduler_name)
            return
        if isinstance(seen, Silent):
            job.on_state(job.state, f"{_UNREACHABLE} since {seen.for_s:.0f} s")
            return
        if job.reason.startswith(_UNREACHABLE):
            job.on_state(job.state, "")
        if seen is not None:
            self.scheduler_id, self.doubt = seen.scheduler_id or self.scheduler_id, None
            if job.state == PENDING and seen.phase == base.PENDING:
                self._turn = self.session.scheduler.in_words(seen)
                self._waits(job)
                self._give_up_waiting(job)
        self.witness.scheduler_said(seen)

    def _waits(self, job: Job[Any]) -> None:
        if job.state == PENDING:
            job.on_state(PENDING, "; ".join(filter(None, [self._turn, self._besides])))

    def waits_for(self, job: Job[Any], what: str) -> None:
        """What it waits for besides its turn, and how far that is; "" for nothing any more."""
        self._besides = what
        self._waits(job)

    def cannot_have(self, message: str, evidence: Sequence[str], hint: str) -> None:
        """There will be no environment: unless it has begun all the same, it need not wait any longer."""
        verdict = Verdict(layout.ENVIRONMENT, message, tuple(evidence), hint, "environment", withdraw=True)
        submission = self.submission  # a scheduler forgets nothing that it has not yet heard
        if submission is None:
            self.witness.conclude_and_cancel(verdict)
        else:
            submission.add_done_callback(lambda _: self.witness.conclude_and_cancel(verdict))

    def _give_up_waiting(self, job: Job[Any]) -> None:
        limit_s = self.session.host.queue_timeout_s if self.session.scheduler.knows_all else None
        if limit_s is not None and time.monotonic() - job.submitted_at > limit_s:
            message = f"the job has waited for longer than the host's queue_timeout, {limit_s:g} s ({job.reason})"
            self.witness.conclude_and_cancel(
                Verdict(layout.UNSATISFIABLE, message, hint="try again, or ask for less", stage="queue", withdraw=True)
            )

    def _on_outcome(self, job: Job[Any], reply: Reply[bytes]) -> None:
        error = reply.exception(0)
        if error is None:
            try:
                self._take_outcome(job, reply.result(0))
                return
            except HostError as ended:  # the connection has ended meanwhile
                error = ended
        if isinstance(error, ResultError):
            job.on_refused(error)
        else:
            job.on_lost(_lost(error, job))
        self.end()

    def _take_outcome(self, job: Job[Any], data: bytes) -> None:
        try:
            told = outcome.read(data)
            if told["kind"] in layout.NOT_FINAL:
                self._follow_next(job, told)
                return
        except ValueError as unreadable:
            job.on_refused(_unreadable(unreadable, job))
            self.end()
            return
        self.end()
        self._learn(told)
        if self.doubt is not None and told.get("stage") == "submit":
            self._never_submitted(job, self.doubt)
            return
        arriving, self._arriving = self._arriving, None
        exit_flush.apart(lambda: job.on_outcome(told, arriving.value if arriving else None), "clusterfn-outcome")

    def _learn(self, told: dict[str, Any]) -> None:
        """What was sent once may not be there any more, or not whole."""
        if told["kind"] == layout.PAYLOAD_BROKEN:
            self.session.there.clear()
        elif told["kind"] == layout.ENVIRONMENT and told.get("stage") == "start":
            self.session.distrust()
        elif told["kind"] == layout.ENVIRONMENT:
            self.session.there.clear()

    def _never_submitted(self, job: Job[Any], refusal: SubmitError) -> None:
        """The scheduler had not taken it after all, and now it cannot run any more: nothing of it stays."""
        job.on_refused(refusal)
        self.cancel_at_scheduler()
        exit_flush.remove(self.connection, self.folder)

    def _follow_next(self, job: Job[Any], told: dict[str, Any]) -> None:
        self._ended.add(self.attempt)
        following = told.get("superseded_by") or self.attempt + 1
        if following in self._ended:  # each has one outcome, which never changes
            raise ValueError(f"attempts {sorted(self._ended)} name one another as the next")
        if told["kind"] == layout.PREEMPTED:
            job.on_state("PENDING", f"preempted, queued again (attempt {following})")
        elif told.get("retried"):
            job.on_retry(told.get("message") or "the job is tried again")
        elif following > self.attempt:
            job.on_retry(f"attempt {self.attempt} left no word; the scheduler has started the job again ({following})")
        self.follow(job, following)
        self.witness.listen()

    def end(self) -> None:
        """The job needs no more looks, and nothing of it is held any longer."""
        self._follows = []
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()
        self.session.unwatch(self.scheduler_name)
        self.witness.end()

    def withdraw(self) -> bool:
        """Keep the job from ever starting; false if it has started."""
        if self._drop():
            return True
        verdict = Verdict(layout.CANCELLED, "the job was withdrawn before it started", stage="queue", withdraw=True)
        self._await_submission()
        standing = self.witness.conclude(verdict).result(_TIMEOUT_S)
        won = self.witness.standing(standing).get("won") is True
        if won:
            self._leave_queue()
        return won

    def _drop(self) -> bool:
        """Stop sending it; false if all of it is there."""
        last = posixpath.join(self.folder, layout.PAYLOAD)
        return self.sending is not None and self.sending.drop(self.connection, last, _DROP_S)

    def _await_submission(self) -> None:
        """What the scheduler does not know yet cannot be taken from it."""
        submission = self.submission
        if submission is not None:
            submission.exception(_TIMEOUT_S)

    def stop(self) -> None:
        """Withdraw the job, or end it with its whole tree."""
        if not self.withdraw():
            self.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)
            self._leave_queue()

    def cancel_at_scheduler(self) -> Reply[Completed] | None:
        """Take the job out of the scheduler's queue, or have it send its signal; does not wait."""
        argv = self.session.scheduler.cancel_command(self.scheduler_name)
        return self.connection.run(argv, unset=self.session.scheduler.unset) if argv else None

    def _leave_queue(self) -> None:
        """The same, and see that it was done: who ends the program now must not leave a job waiting."""
        asked = self.cancel_at_scheduler()
        if asked is None:
            return
        answer = asked.result(_TIMEOUT_S)
        if answer.rc != 0:
            raise SubmitError(
                "the job will not run any more, but its scheduler did not take it out of the queue",
                host=self.session.host.name,
                stage="queue",
                evidence=answer.err.decode("utf-8", "replace").splitlines(),
                hint=f"try again, or say there: scancel --name {self.scheduler_name}",
            )


def _script_id(told: str) -> str:
    """Which process job.sh is, as the claim would have it; "" if it never began."""
    boot, _, stat = told.partition(" ")
    fields = stat.rpartition(")")[2].split()
    return f"{boot}:{stat.split(' ')[0]}:{fields[19]}" if len(fields) > 19 else ""


def _trouble(host: str, state: State) -> str:
    """Why nothing is heard of the host; "" while it is heard."""
    if state.name != "reconnecting":
        return state.cause if state.name == "waiting" else ""
    since = time.strftime("%H:%M:%S", time.localtime(state.since))
    return f"no connection to {host} since {since}, trying again: {state.cause}"


def _lost(error: BaseException, job: Job[Any]) -> ClusterfnError:
    """The error of the connection as this job's own: others of the host get theirs."""
    if not isinstance(error, ClusterfnError):
        return HostError(f"the connection failed: {error!r}", host=job.host, job=job.id)
    lost = copy.copy(error)
    lost.job, lost.hint = job.id, error.hint or f"the job may still run: clusterfn.attach({job.id!r}).result()"
    return lost


def _event(line: bytes) -> dict[str, str]:
    """The texts in a line of events.jsonl; none of a line that is damaged."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return {name: text for name, text in told.items() if isinstance(text, str)} if isinstance(told, dict) else {}


def _unreadable(error: ValueError, job: Job[Any]) -> JobError:
    message = f"the job has ended, but its {layout.OUTCOME} is damaged: {error}"
    return JobError(message, host=job.host, job=job.id, stage="result", hint="look at job.logs()", log=job.folder)
