"""Follows one job on its host, through all its attempts, and reports to a `JobListener`, such as a `Job`.

All of it is read from the job's own files. Nothing is concluded here: `liveness` asks the host to do that. Callbacks
run on the connection's reader thread, so they must not wait for an answer.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import functools
import json
import posixpath
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import FINAL, PENDING, RUNNING, STARTING, SUSPENDED
from clusterfn.bridge.supervisor.text import printable
from clusterfn.calls import job_display, outcome, remote_state
from clusterfn.calls.arriving import Arriving
from clusterfn.calls.dependencies import describe_open
from clusterfn.calls.job import Job
from clusterfn.calls.liveness import LivenessMonitor
from clusterfn.calls.resubmit import PendingSubmission
from clusterfn.errors import (
    ClusterfnError,
    ConfigError,
    HostDiskFull,
    HostError,
    JobError,
    ResultError,
    SubmitError,
    Unreachable,
)
from clusterfn.hosts import exit_flush, spoken_wait
from clusterfn.hosts.rpc.link import describe_trouble
from clusterfn.hosts.scheduler_watch import UNREACHABLE, Seen, Silent
from clusterfn.hosts.transfer import Sending, Transfer
from clusterfn.scheduler import base
from clusterfn.scheduler.base import JobState, SchedulerVerdict

if TYPE_CHECKING:
    from clusterfn.calls.dependencies import Reference
    from clusterfn.config.spec import ResultPolicy
    from clusterfn.hosts.connection import Completed, HostConnection, Reply
    from clusterfn.hosts.host_state import HostState
    from clusterfn.hosts.landing import Value

R = TypeVar("R")
_STATES = {
    "pending": PENDING, "starting": STARTING, "running": RUNNING, "suspended": SUSPENDED, "resumed": RUNNING,
}  # fmt: skip
_TIMEOUT_S = 60.0
_DROP_S = 15.0
_ENDS_ITSELF_S, _KILLED_AFTER_S = 3.0, 8.0  # after a request to stop it; a scheduler gives it some seconds itself
_RECEIVING = "receiving its value:"
_AGAIN_S = 0.2
_PUBLISHED = [[f"it is {state}"] for state in sorted(set(FINAL.values()))]
_LATEST = 4e9  # a time that a clock may show
_TAKES_S = 3.0  # most hosts and schedulers take a job sooner
_REST_S = 15.0  # for the last of what a job has printed, after its outcome


class JobListener(Protocol):
    """What a `Tracker` reports to: a `Job`, a call of a session, or an element of a group.

    Attributes:
        id, host, folder: Of the job, for messages.
        submitted_at: When it was sent, by the monotonic clock.
    """

    id: str
    host: str
    folder: str
    submitted_at: float

    @property
    def state(self) -> str:
        """As `Job.state`."""

    @property
    def reason(self) -> str:
        """Why it is in that state."""

    def on_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        """Take the job's new state, and since when it is in it; now if that is not given."""

    def on_silent(self) -> None:
        """Take note that no heartbeat has come for `SILENT_AFTER_S`; that is said again while it lasts."""

    def on_transfer(self, transfer: Transfer) -> None:
        """Take the transfer of files that are being sent or received."""

    def on_output(self, stream: str, data: bytes) -> None:
        """Take what it has printed to "stdout" or "stderr"."""

    def on_quiet(self, told: str, item: str = "") -> None:
        """Take, in words, that it has made no progress for long; "" once it makes progress again."""

    def on_limited(self, told: str) -> None:
        """Take, in words, that its machine gives it less than it asked for."""

    def on_retry(self, told: str) -> None:
        """Take the reason for which an attempt has ended and another begins."""

    def on_connection(self, trouble: str) -> None:
        """Take why nothing is received from the host; "" once it is connected again."""

    def on_outcome(self, published: Mapping[str, Any], value: Value | None) -> None:
        """Take its final outcome, in a thread of its own."""

    def on_lost(self, error: ClusterfnError) -> None:
        """Take the error after which nothing more can be received; the job itself may continue."""

    def on_refused(self, error: ClusterfnError, kind: str = "") -> None:
        """Take the error of a job that was not accepted, or whose outcome cannot be read.

        `kind`: of the outcome, if only the value cannot be received.
        """


class BaseTracker:
    """What the trackers of jobs and groups have in common: their sending, and their place in the scheduler's queue.

    Args:
        session: The host.
        folder: The job's or the group's on the host.
        scheduler_name: Its name in the scheduler's queue.

    Attributes:
        sending: All that is sent for it, if this process does so.
        laid_out: The answer to the sending of its folder, if this process has sent it.
    """

    _is_refused = False  # for now

    def __init__(self, session: HostState, folder: str, scheduler_name: str) -> None:
        self.session = session
        self.folder = folder
        self.scheduler_name = scheduler_name
        self.sending: Sending | None = None
        self.laid_out: Reply[bool] | None = None
        self._turn = self._besides = ""

    @property
    def connection(self) -> HostConnection:
        """The connection to its host."""
        return self.session.connection

    @property
    def waiting_reason(self) -> str:
        """Why it waits: its place in the queue, and what it waits for in addition to its turn."""
        return "; ".join(filter(None, [self._turn, self._besides]))

    def submissions(self) -> Sequence[Reply[Any]]:
        """Return the requests that start it."""
        raise NotImplementedError

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
        self._turn = reason
        self._is_refused = True
        after = [self.laid_out] if self.laid_out is not None else []  # else this would be all of its folder
        with contextlib.suppress(HostError):
            self.connection.put(posixpath.join(self.folder, layout.REFUSED), reason.encode(), after=after)

    def _note_acceptance(self) -> None:
        if self._is_refused:
            self._is_refused, self._turn = False, ""
            self.connection.run(["rm", "-f", posixpath.join(self.folder, layout.REFUSED)])

    def await_submissions(self) -> None:
        """Submit nothing again, and wait for answers that are due: a scheduler cannot cancel what it does not know."""
        for each in list(self.submissions()):
            if isinstance(each, PendingSubmission):
                each.withdraw()
        for each in list(self.submissions()):
            each.exception(_TIMEOUT_S)

    def open_requests(self) -> list[Reply[Any]]:
        """Return the requests after which its folder is on the host, and its scheduler knows it."""
        # Without a scheduler that one ends with the job itself.
        sent = [self.laid_out, *(self.submissions() if self.session.scheduler.has_nodes else ())]
        return [each for each in sent if each is not None and not each.done()]

    def unanswered(self, since: float) -> str:
        """Say who has not taken it yet, if it was sent longer ago than a moment; "" otherwise.

        Args:
            since: When it was sent, by the monotonic clock.
        """
        silent_s, rules, host = time.monotonic() - since, self.session.scheduler_rules, self.session.host.name
        if silent_s < _TAKES_S or self._is_refused:
            return ""
        is_there = self.laid_out is None or self.laid_out.done()
        if is_there and not (rules.has_nodes and any(not each.done() for each in self.submissions())):
            return ""
        return f"{f'{rules.title} on {host}' if is_there else host} has not taken it for {silent_s:.0f} s"

    def cancel_at_scheduler(self) -> Reply[Completed] | None:
        """Take it out of the scheduler's queue, or have it send its signal; does not wait."""
        argv = self.session.scheduler.cancel_command(self.scheduler_name)
        return self.connection.run(argv, unset=self.session.scheduler.unset) if argv else None

    def end_if_stuck(
        self, is_over: Callable[[], bool], on_left: Callable[[str], object], look: Callable[[], None]
    ) -> None:  # fmt: skip
        """Have the host end it, some seconds after it was asked to stop, if its own processes have not done so.

        Args:
            is_over: Whether it has ended.
            on_left: Takes the names of processes that cannot be ended.
            look: Called once a scheduler was asked to kill it: nothing of it may be left that could say how it ended.
        """
        kill = self.session.scheduler.kill_command(self.scheduler_name)

        def end() -> None:
            if is_over():
                return
            with contextlib.suppress(ClusterfnError):  # the host cannot be asked any more
                if kill:
                    killed = self.connection.run(kill, unset=self.session.scheduler.unset)
                    killed.add_done_callback(lambda _: look())
                else:
                    self.session.supervise("end", self.folder).add_done_callback(answered)

        def answered(asked: Reply[Completed]) -> None:
            left = [] if asked.exception() is not None else _left_by(asked.result(0))
            if left:
                on_left(f"could not be ended: {', '.join(left)}")

        later = threading.Timer(_KILLED_AFTER_S if kill else _ENDS_ITSELF_S, end)
        later.daemon = True
        later.start()

    def _stop_sending(self) -> bool:
        """Stop sending it; false if all of it is on the host."""
        last = posixpath.join(self.folder, layout.PAYLOAD)
        if self.sending is None or not self.sending.drop(self.connection, last, _DROP_S):
            return False
        for each in list(self.submissions()):
            if isinstance(each, PendingSubmission):
                each.drop()
        return True


class Tracker(BaseTracker):
    """Follows one job.

    Args:
        session: Its host.
        job_id: Its id.
        name: The function's name.
        live: Whether what it prints is followed.
        bridge: The folder of the bridge that it was sent with; "" for this version's.
        keeps: Whether its value stays on the host until `fetch_value` asks for it.
        results: What is accepted of its value; None for what the host's keys say.

    Attributes:
        events_read: Bytes of the present attempt's events that have come.
        doubt: What the scheduler said at a submission that may have succeeded all the same; None otherwise.
        has_outcome: Whether its final outcome has come.
        time_s: For how long it may run, as its call asks.
        inputs: The jobs whose values it takes, as far as this process knows them.
        shown_by: What gets the output of the present attempt and of later ones, in addition to the job if it is live.
        awaited: The answer that brings the outcome of the present attempt.
    """

    # What hardly any job changes: see `Job`.
    doubt: SubmitError | None = None
    has_outcome = False
    time_s: float | None = None
    _partial = b""
    _held_until = 0.0
    _unsent: tuple[Callable[[], bool], str] | None = None

    def __init__(
        self, session: HostState, job_id: str, name: str, live: bool = False, bridge: str = "", keeps: bool = False,
        results: ResultPolicy | None = None,
    ) -> None:  # fmt: skip
        super().__init__(session, layout.job_dir(session.root, job_id), layout.job_name(name, job_id))
        self.bridge = bridge
        self.keeps = keeps
        self._results = results
        self.scheduler_id = ""
        self.attempt = 1
        self.events_read = 0
        self.live = live
        self.submission: Reply[Any] | None = None
        self.liveness = LivenessMonitor(self)
        self.awaited: Reply[Any] | None = None
        self._follows: list[Reply[Any]] = []
        self._unwatch: Callable[[], None] | None = None
        self.arriving_outcome: Arriving | None = None
        self._ended: set[int] = set()
        self.shown_by: list[Callable[[str, bytes], Any]] = []
        self.inputs: Sequence[Reference] = ()
        self._choosing_attempt = threading.Lock()
        self._receiving = Transfer(_RECEIVING)

    @property
    def results(self) -> ResultPolicy:
        """What is accepted of its value."""
        return self._results or self.session.host.result_policy()

    @property
    def is_fetched_apart(self) -> bool:
        """Whether its value comes only when its outcome is known: it is kept, or its size decides."""
        return self.keeps or self.results.max_bytes is not None

    def _place(self, job: JobListener) -> outcome.JobLocation:
        return outcome.JobLocation(job.host, job.id, self.folder, self.results)

    def hold_back(self, withdraw: Callable[[], bool], why: str) -> None:
        """Take note that it is not sent yet, and of the function that keeps it from being sent."""
        self._unsent = withdraw, why

    def release(self) -> None:
        """Take note that it is being sent."""
        self._unsent = None

    @property
    def attempt_folder(self) -> str:
        """The folder of the present attempt."""
        return layout.attempt_dir(self.folder, self.attempt)

    @property
    def work_folder(self) -> str:
        """Where the function runs, unless `cwd` says otherwise."""
        return posixpath.join(self.attempt_folder, layout.WORK)

    def log_path(self, stream: str) -> str:
        """Return the file of stdout, stderr or the scheduler."""
        if stream == "scheduler":
            return posixpath.join(self.folder, layout.SCHEDULER_LOG)
        return posixpath.join(self.attempt_folder, stream)

    def open_requests(self) -> list[Reply[Any]]:
        if self._unsent is not None:
            raise ConfigError(
                f"{self.scheduler_name} has not been sent yet ({self._unsent[1]}), so no other call can wait for it",
                hint="submit both calls to the same Executor, or pass the value: job.result()",
            )
        return super().open_requests()

    def submissions(self) -> Sequence[Reply[Any]]:
        return [self.submission] if self.submission is not None else []

    def forget_sending(self) -> None:
        """Drop the answers to what was sent: it has all arrived, as the job was started after it."""
        if self.sending is not None:
            self.sending.forget()
        self.sending = self.laid_out = None

    def started(self, job: JobListener, scheduler_id: str) -> None:
        """Watch the job, which was started, in its scheduler's queue and by its heartbeat."""
        self.scheduler_id = self.scheduler_id or scheduler_id
        self._note_acceptance()
        if self.session.scheduler.knows_all:
            self.queued(job)
        self.liveness.call_if_cannot_conclude(lambda error: self._cannot_conclude(job, error))
        self.liveness.call_if_silent(job.on_silent)
        self.liveness.watch_heartbeat()

    def refused_for_now(self, job: JobListener, reason: str) -> None:
        """Show why it is not in the scheduler's queue yet; its time in the queue counts from its submission here."""
        self._note_refusal(reason)
        self._waits(job)

    def queued(self, job: JobListener) -> None:
        """Watch it in the scheduler's queue."""
        self.liveness.expect_looks()
        self.session.watch.add(self.scheduler_name, lambda seen: self.on_scheduler(job, seen), self.time_s)

    def _cannot_conclude(self, job: JobListener, error: ClusterfnError) -> None:
        """Report that its script is gone and the host has no disk space, or has lost the files, to publish why."""
        self.end()
        if not isinstance(error, HostDiskFull):
            self.session.distrust()
        error.host, error.job = self.session.host.name, job.id
        job.on_refused(error)

    def attach(self, job: JobListener, claim: bytes, started: bytes) -> None:
        """Follow a job that another process sent, from its first attempt on.

        Args:
            claim, started: What these files of the job hold; b"" for one that does not exist.
        """
        submission = claim.decode("ascii", "replace").strip()
        self.follow(job, 1)
        self.started(job, submission or _script_id(started.decode("utf-8", "replace")))
        if not submission and not self.session.scheduler.knows_all:
            self.queued(job)
            self.liveness.look_until_it_begins()

    def follow(self, job: JobListener, attempt: int) -> None:
        """Follow an attempt from its beginning: its events, what it prints, its outcome."""
        with self._choosing_attempt:
            self.attempt = attempt
            shown_by = [*self.shown_by, *([job.on_output] if self.live else [])]
        self._watch_connection(job)
        self._partial, self.events_read = b"", 0
        self._follow_files(job, shown_by, {})

    def _follow_files(
        self, job: JobListener, shown_by: Sequence[Callable[[str, bytes], Any]], heard: Mapping[str, int]
    ) -> None:
        """Follow the files of the present attempt.

        Args:
            shown_by: What gets the output.
            heard: How many bytes of a file have come already, by its name.
        """
        folder, connection = self.attempt_folder, self.connection
        events, on_events = posixpath.join(folder, layout.EVENTS), functools.partial(self._on_events, job)
        self._follows = [connection.follow(events, on_events, heard.get(layout.EVENTS, 0))]
        for on_output in shown_by:
            self._follows += self._follow_output(folder, on_output, heard)
        if self.is_fetched_apart:
            waiting = connection.wait(posixpath.join(folder, layout.OUTCOME), drain=self._follows)
        else:
            arriving = self.arriving_outcome = Arriving(self._place(job))
            waiting = connection.wait(
                posixpath.join(folder, layout.OUTCOME),
                with_files=[(posixpath.join(folder, layout.VALUE), arriving)],
                drain=self._follows,
                on_content=arriving.announce,
                # Through a file system of several machines, a piece may be seen before those ahead of it.
                on_early=None if self.session.scheduler.has_nodes else arriving.begin_early,
            )
            self._receiving = Transfer(_RECEIVING, [waiting])
        self.awaited = waiting
        waiting.add_done_callback(lambda reply: self.receive_outcome(job, reply))

    def fetch_value(self, job: Job[Any], told: Mapping[str, Any], timeout: float | None = None) -> Value | None:
        """Fetch the value, or the exception, of a job that has ended, which was kept on the host.

        Args:
            told: Its outcome.
            timeout: Seconds; None for as long as it takes.

        Raises:
            ResultError: It is no longer there, or does not fit into memory.
            HostError: The host does not answer.
            TimeoutError: It has not come within `timeout` seconds.
        """
        arriving = Arriving(self._place(job))
        arriving.expect(told)
        receiving = self.connection.get(posixpath.join(self.attempt_folder, layout.VALUE), arriving)
        job.on_transfer(Transfer(_RECEIVING, [receiving]))
        try:
            receiving.result(timeout)
        except Unreachable:
            if receiving.done():
                raise
            receiving.cancel()
            raise concurrent.futures.TimeoutError(f"the value has not come within {timeout} s") from None
        except HostError as error:
            if error.kind != "missing":
                raise
            raise ResultError(
                "the value is not on the host any more", host=job.host, job=job.id, stage="result",
                hint="it was removed, or was there for longer than the host's `keep:`; call the function again",
            ) from None  # fmt: skip
        except BaseException:  # Ctrl-C: the rest of it would come all the same
            receiving.cancel()
            raise
        return arriving.value

    @property
    def is_on_its_way(self) -> bool:
        """Whether the host does not have all of it yet."""
        return self._unsent is not None or (self.laid_out is not None and not self.laid_out.done())

    def remove(self) -> None:
        """Remove the job, which has ended, from the host with its value and its files."""
        job, until = posixpath.basename(self.folder), time.monotonic() + _TIMEOUT_S
        told = remote_state.remove_jobs(self.session, [job])
        # Its supervisor ends a moment after it has published the outcome.
        with spoken_wait.speaking(lambda: f"waiting for the supervisor of {self.scheduler_name} to end"):
            while [each["why"] for each in told["kept"]] in _PUBLISHED and time.monotonic() < until:
                time.sleep(_AGAIN_S)
                told = remote_state.remove_jobs(self.session, [job])
        for each in told["kept"]:
            raise ClusterfnError(
                f"{self.scheduler_name} was not removed: {each['why']}", host=self.session.host.name, job=each["id"],
                hint="remove it once it has ended, and no job needs its value that waits or runs",
            )  # fmt: skip

    def _follow_output(
        self, folder: str, on_output: Callable[[str, bytes], Any], heard: Mapping[str, int] | None = None
    ) -> list[Reply[int]]:
        return [
            self.connection.follow(
                posixpath.join(folder, name), functools.partial(on_output, name), (heard or {}).get(name, 0)
            )
            for name in (layout.STDOUT, layout.STDERR)
        ]

    def show(self, job: Job[R]) -> R:
        """Show why the job waits and what it prints, from the beginning of the present attempt; return its value."""
        output = None if self.live else functools.partial(self._output, job)
        return job_display.result(job, f"{job.name} on {job.host}", job.on_interrupt, output)

    @contextlib.contextmanager
    def _output(self, job: Job[Any], on_output: Callable[[str, bytes], Any]) -> Iterator[Callable[[], None]]:
        """Pass on what is printed; give a function that waits for the last of it once the job has ended."""

        def heard(stream: str, data: bytes) -> None:
            job.on_begun(data)
            on_output(stream, data)

        with self._choosing_attempt:
            self.shown_by.append(heard)
            folder = self.attempt_folder
        follows = self._follow_output(folder, heard)
        last = self.connection.wait(posixpath.join(folder, layout.OUTCOME), drain=follows)
        try:
            yield lambda: self._await_last(last)
        finally:
            self.shown_by.remove(heard)
            last.cancel()
            for each in follows:
                each.cancel()

    def watch_output(self, on_output: Callable[[str, bytes], Any]) -> None:
        """Pass on what the present attempt prints, from its beginning, and later ones."""
        with self._choosing_attempt:
            self.shown_by.append(on_output)
            folder = self.attempt_folder
        follows = self._follow_output(folder, on_output)
        self.connection.wait(posixpath.join(folder, layout.OUTCOME), drain=follows)

    def _await_last(self, last: Reply[bytes]) -> None:
        if self.has_outcome:  # else there is none to wait for: it was refused, or moved to another session
            with contextlib.suppress(Unreachable):  # the outcome is known, and the output stays on the host
                last.exception(_REST_S)

    def _watch_connection(self, job: JobListener) -> None:
        """Report to the job while its host is not connected."""
        if self._unwatch is None:
            connection = self.connection
            self._unwatch = connection.on_state(lambda state: job.on_connection(describe_trouble(job.host, state)))
            job.on_connection(describe_trouble(job.host, connection.state))

    def _on_events(self, job: JobListener, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for event in map(_event, lines):
            if event.get("event") == "stage" and event.get("stage") == "result" and not self.is_fetched_apart:
                job.on_state(job.state, "its value is on the way")
                job.on_transfer(self._receiving)
            elif event.get("event") in ("quiet", "active"):
                job.on_quiet(event.get("reason", "") if event["event"] == "quiet" else "", event.get("item", ""))
            elif event.get("event") == "limited":
                job.on_limited(event.get("reason", ""))
            elif event.get("event") in _STATES:
                reason = event.get("reason") or event.get("node") or ""
                job.on_state(_STATES[event["event"]], reason, _time_of(event))
        self.events_read += len(data)

    def on_scheduler(self, job: JobListener, seen: Seen) -> None:
        """Take what the scheduler said of the job at one look."""
        if job.state != PENDING and not self.session.scheduler.knows_all:
            self.session.unwatch(self.scheduler_name)
            return
        if isinstance(seen, Silent):
            job.on_state(job.state, seen.in_words)
            return
        if job.reason.startswith(UNREACHABLE):
            job.on_state(job.state, "")
        if seen is not None:
            self.scheduler_id, self.doubt = seen.scheduler_id or self.scheduler_id, None
            if job.state == PENDING and seen.phase == base.PENDING:
                self._turn = self.session.scheduler.in_words(seen)
                if self.session.scheduler.waits_for_jobs(seen):
                    self._held_until = time.monotonic()  # its time in the queue begins when its inputs are complete
                    self._turn = describe_open(self.inputs) or self._turn
                self._waits(job)
                limit_s = self.session.host.queue_timeout_s if self.session.scheduler.knows_all else None
                if limit_s is not None and time.monotonic() - max(job.submitted_at, self._held_until) > limit_s:
                    waited = f"the job has waited longer than the host's queue_timeout, {limit_s:g} s"
                    verdict = SchedulerVerdict(
                        layout.UNSATISFIABLE, f"{waited} ({job.reason})", hint="try again, or request less",
                        stage="queue", withdraw=True,
                    )  # fmt: skip
                    self.liveness.conclude_and_cancel(verdict)
            self._look_whether_suspended(job, seen)
        self.liveness.scheduler_said(seen)

    def _look_whether_suspended(self, job: JobListener, seen: JobState) -> None:
        """Take from the scheduler that it has stopped the job, whose supervisor may not have been able to say so."""
        why = self.session.scheduler.suspended(seen)
        if why and job.state in (STARTING, RUNNING):
            job.on_state(SUSPENDED, why)
        elif not why and job.state == SUSPENDED and seen.phase == base.RUNNING:
            job.on_state(RUNNING)

    def _waits(self, job: JobListener) -> None:
        if job.state == PENDING:
            job.on_state(PENDING, self.waiting_reason)

    def waits_for(self, job: JobListener, what: str) -> None:
        """Show what it waits for in addition to its turn, and how far that is; "" for nothing any more."""
        self._besides = what
        self._waits(job)

    def cannot_have(self, message: str, evidence: Sequence[str], hint: str) -> None:
        """Conclude the job, unless it has begun all the same: there will be no environment."""
        verdict = SchedulerVerdict(layout.ENVIRONMENT, message, tuple(evidence), hint, "environment", withdraw=True)
        submission = self.submission  # a scheduler cannot cancel what it does not know yet
        if submission is None:
            self.liveness.conclude_and_cancel(verdict)
        else:
            submission.add_done_callback(lambda _: self.liveness.conclude_and_cancel(verdict))
            if isinstance(submission, PendingSubmission):
                submission.withdraw()

    def receive_outcome(self, job: JobListener, reply: Reply[bytes]) -> None:
        error = reply.exception(0)
        if error is None:
            try:
                self._take_outcome(job, reply.result(0))
                return
            except HostError as ended:  # the connection has ended meanwhile
                error = ended
        arriving = self.arriving_outcome
        if arriving is not None:
            arriving.drop()
        if isinstance(error, ResultError):
            job.on_refused(error, arriving.kind if arriving is not None else "")
        else:
            job.on_lost(_lost(error, job))
        self.end()

    def _take_outcome(self, job: JobListener, data: bytes) -> None:
        try:
            told = outcome.read(data)
            if told["kind"] in layout.NOT_FINAL:
                self._follow_next(job, told)
                return
        except ValueError as unreadable:
            message = f"the job has ended, but its {layout.OUTCOME} is damaged: {unreadable}"
            hint = "read job.logs()"
            job.on_refused(JobError(message, host=job.host, job=job.id, stage="result", hint=hint, log=job.folder))
            self.end()
            return
        self.end()
        if told["kind"] == layout.ENVIRONMENT and told.get("stage") == "start":  # the bridge there is gone or damaged
            self.session.distrust()
        elif told["kind"] in (layout.PAYLOAD_BROKEN, layout.ENVIRONMENT):
            self.session.contents.forget()
        if self.doubt is not None and told.get("stage") == "submit":  # it was not submitted: nothing of it stays
            job.on_refused(self.doubt)
            self.cancel_at_scheduler()
            exit_flush.remove_folder(self.connection, self.folder)
            return
        self.has_outcome = True
        arriving, self.arriving_outcome = self.arriving_outcome, None
        exit_flush.run_in_thread(lambda: self._hand_over(job, told, arriving), "clusterfn-outcome")

    def _hand_over(self, job: JobListener, told: dict[str, Any], arriving: Arriving | None) -> None:
        """Give the outcome to the job, and the value; this thread keeps no name for it."""
        try:
            value = [arriving.value if arriving is not None else None]
        except ResultError as error:
            job.on_refused(error, told["kind"])
            return
        if arriving is not None:
            arriving.drop()
        job.on_outcome(told, value.pop())

    def _follow_next(self, job: JobListener, told: dict[str, Any]) -> None:
        self._ended.add(self.attempt)
        following = told.get("superseded_by") or self.attempt + 1
        if following in self._ended:  # each has one outcome, which never changes
            raise ValueError(f"attempts {sorted(self._ended)} name one another as the next")
        if told.get("requeued"):
            message = str(told.get("message") or "the job is requeued")
            job.on_retry(message)
            job.on_state(PENDING, message)
        elif told["kind"] == layout.PREEMPTED:
            job.on_state(PENDING, f"preempted, queued again (attempt {following})")
        elif told.get("retried"):
            job.on_retry(told.get("message") or "the job is retried")
        elif following > self.attempt:
            job.on_retry(f"attempt {self.attempt} left no result; the scheduler has restarted the job ({following})")
        self.follow(job, following)
        self.liveness.watch_heartbeat()

    def is_caught_up(self, job: Job[Any], sizes: Mapping[str, int]) -> bool:
        """Whether the job is known to have ended, or all events of its present attempt have been read.

        Args:
            sizes: The sizes of files that the host had, by their names below the folder of attempts.
        """
        ended, events = (f"{self.attempt}/{name}" for name in (layout.OUTCOME, layout.EVENTS))
        return job.done() or (ended not in sizes and self.events_read >= sizes.get(events, 0))

    def end(self) -> None:
        """Stop following the job."""
        self._follows, self.awaited, self.inputs = [], None, ()
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()
        self.session.unwatch(self.scheduler_name)
        self.liveness.end()
        if isinstance(self.submission, PendingSubmission):  # cancelled by another program before SLURM had room for it
            self.submission.withdraw()

    def withdraw(self) -> bool:
        """Keep the job from ever starting; false if it has started."""
        unsent = self._unsent
        if (unsent is not None and unsent[0]()) or self._stop_sending():
            return True
        verdict = SchedulerVerdict(
            layout.CANCELLED, "the job was withdrawn before it started", stage="queue", withdraw=True
        )
        self.await_submissions()
        answer = self.liveness.conclude(verdict).result(_TIMEOUT_S)
        won = self.liveness.parse_conclusion(answer).get("won") is True
        if won:
            self._leave_queue()
        return won

    def stop(self, on_left: Callable[[str], object]) -> None:
        """Withdraw the job, or end it with its whole tree; `on_left` takes the names of processes that stay."""
        if not self.withdraw():
            self.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)
            self._leave_queue()
            self.end_if_stuck(lambda: self.has_outcome, on_left, self.liveness.look_until_it_ends)

    def _leave_queue(self) -> None:
        """Take the job out of the queue, and wait for that: a program that ends now must leave no waiting job."""
        asked = self.cancel_at_scheduler()
        if asked is None:
            return
        answer = asked.result(_TIMEOUT_S)
        if answer.rc != 0:
            raise SubmitError(
                "the job will not run, but its scheduler did not remove it from the queue",
                host=self.session.host.name,
                stage="queue",
                evidence=answer.err.decode("utf-8", "replace").splitlines(),
                hint=f"try again, or run on the host: {self.session.scheduler.cancel_by_hand(self.scheduler_name)}",
            )


def _left_by(answer: Completed) -> list[str]:
    """Return the processes that `supervise.py end` could not end."""
    try:
        return [printable(str(name)) for name in json.loads(answer.out.splitlines()[-1])["left"]]
    except (ValueError, IndexError, KeyError, TypeError):  # the disk is full, say, so that it could not begin
        return []


def _script_id(told: str) -> str:
    """Return the process of job.sh, written as in the claim; "" if it never began."""
    boot, _, stat = told.partition(" ")
    fields = stat.rpartition(")")[2].split()
    return f"{boot}:{stat.split(' ')[0]}:{fields[19]}" if len(fields) > 19 else ""


def _lost(error: BaseException, job: JobListener) -> ClusterfnError:
    """Copy the connection's error for this job: other jobs of the host get their own."""
    if not isinstance(error, ClusterfnError):
        return HostError(f"the connection failed: {error!r}", host=job.host, job=job.id)
    lost = copy.copy(error)
    lost.job, lost.hint = job.id, error.hint or f"the job may still run: clusterfn.attach({job.id!r}).result()"
    return lost


def _event(line: bytes) -> dict[str, str]:
    """Return the texts in a line of events.jsonl; {} for a damaged line."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    facts = told if isinstance(told, dict) else {}
    return {name: str(fact) for name, fact in facts.items() if isinstance(fact, str) or name == _WHEN}


_WHEN = "t"


def _time_of(event: Mapping[str, str]) -> float | None:
    """Return when an event happened, by the host's clock."""
    try:
        when = float(event[_WHEN])
    except (KeyError, ValueError):
        return None
    return when if 0 < when < _LATEST else None
