"""Follows one entry on its host, through all its attempts, and tells it what becomes of it.

All of it is read from the entry's own files, or from a stream that says what is appended to them. Nothing is concluded
here: `liveness` has the host do that. Callbacks run on the connection's reader thread, so they must not wait for an
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import json
import posixpath
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import OF_EVENT, PENDING, STARTING
from clusterfn.calls import job_display, outcome
from clusterfn.calls.arriving import RECEIVING, Arriving
from clusterfn.calls.job import Job, entry_of
from clusterfn.calls.liveness import LivenessMonitor
from clusterfn.calls.queue_tracker import ENDED, Entry, FollowedJob
from clusterfn.config.host_text import Lines
from clusterfn.errors import ClusterfnError, HostDiskFull, HostError, JobError, ResultError, Unreachable
from clusterfn.hosts import loop, remote_files
from clusterfn.hosts.rpc.link import ConnectionState, describe_trouble
from clusterfn.hosts.rpc.requests import Followed
from clusterfn.hosts.transfer import Transfer

if TYPE_CHECKING:
    from clusterfn.config.spec import ResultPolicy
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState

R = TypeVar("R")
# The field of an event that has its time.
_WHEN = "t"
# The latest time that a clock may show, in seconds since 1970.
_LATEST = 4e9
# The last of what a job prints may come this long after its outcome.
_REST_S = 15.0


class Follower(FollowedJob):
    """Follows one job, one element of a group, or one call of a session.

    Args:
        session, folder, scheduler_name, bridge, keeps, results: See `FollowedJob`.
        live: Whether what it prints is followed.

    Attributes:
        events_read: Bytes of the present attempt's events that have come.
        has_outcome: Whether its final outcome has come.
        shown_by: What gets the output of the present attempt and of later ones, in addition to the entry if it is live.
        awaited: The answer that brings the outcome of the present attempt.
    """

    has_outcome = _is_open = False
    _lines: Lines | None = None

    def __init__(
        self, host: HostState, folder: str, scheduler_name: str, live: bool = False, bridge: str = "",
        keeps: bool = False, results: ResultPolicy | None = None,
    ) -> None:  # fmt: skip
        FollowedJob.__init__(self, host, folder, scheduler_name, bridge, keeps, results)
        self.live = live
        self.events_read = 0
        self.liveness = LivenessMonitor(self)
        self.awaited: Reply[Any] | None = None
        self._unwatch: Callable[[], object] | None = None
        self.arriving_outcome: Arriving | None = None
        self._ended: set[int] = set()
        self.shown_by: list[Callable[[str, bytes], Any]] = []
        self._choosing_attempt = threading.Lock()
        self._receiving = Transfer(RECEIVING)

    def follow(self) -> None:
        """Follow it from its first attempt on. Does not wait."""
        loop.begin(self._see_through(self._open_attempt(1)))
        # A refusal may have closed it in the meantime, before there was a request to cancel.
        if self.is_closed:
            self.end()

    def _open_attempt(self, attempt: int) -> Reply[bytes]:
        """Follow an attempt from its beginning: its events and what it prints; return what brings its outcome."""
        with self._choosing_attempt:
            self.attempt, self._is_open = attempt, True
            shown_by = [*self.shown_by, *([self.entry.tell] if self.live else [])]
        self._watch_connection()
        self._lines, self.events_read = None, 0
        return self._follow_files(shown_by, {})

    def _follow_files(self, shown_by: Sequence[Callable[[str, bytes], Any]], heard: Mapping[str, int]) -> Reply[bytes]:
        """Follow the files of the present attempt; return what brings its outcome.

        Args:
            shown_by: What gets the output.
            heard: How many bytes of a file have come already, by its name.
        """
        folder, connection = self.attempt_folder, self.connection
        files = [Followed(posixpath.join(folder, layout.EVENTS), self._take_events, heard.get(layout.EVENTS, 0))]
        files += [each for on_output in shown_by for each in _output_files(folder, on_output, heard)]
        outcome = posixpath.join(folder, layout.OUTCOME)
        if self.is_fetched_apart:
            waiting = connection.follow(files, outcome)
        else:
            arriving = self.arriving_outcome = Arriving(self.place)
            waiting = connection.follow(
                files,
                outcome,
                with_files=[(posixpath.join(folder, layout.VALUE), arriving.write)],
                on_content=arriving.announce,
            )
            self._receiving = Transfer(RECEIVING, [waiting])
        self.awaited = waiting
        return waiting

    def show(self, job: Job[R]) -> R:
        """Show why the job waits and what it prints, from the beginning of the present attempt; return its value."""
        entry = entry_of(job)
        output = None if self.live else self._output
        return job_display.result(job, f"{job.name} on {job.host}", entry.on_interrupt, output)

    @contextlib.contextmanager
    def _output(self, on_output: Callable[[str, bytes], Any]) -> Iterator[Callable[[], None]]:
        """Pass on what is printed; give a function that waits for the last of it once the job has ended."""

        def heard(stream: str, data: bytes) -> None:
            if data and self.entry.state == PENDING:
                self.entry.set_state(STARTING)
            on_output(stream, data)

        def await_last() -> None:
            # Without an outcome there is no output to wait for: the job was rejected.
            if self.has_outcome:
                # The outcome is known, and the output stays on the host.
                with contextlib.suppress(Unreachable):
                    last.exception(_REST_S)

        last = self.watch_output(heard)
        try:
            yield await_last
        finally:
            self.shown_by.remove(heard)
            last.cancel()

    def watch_output(self, on_output: Callable[[str, bytes], Any]) -> Reply[bytes]:
        """Pass on what the present attempt prints, from its beginning, and later ones; the reply is its outcome."""
        with self._choosing_attempt:
            # The lock keeps an attempt from beginning between these two lines: its output would come twice.
            self.shown_by.append(on_output)
            folder, is_open = self.attempt_folder, self._is_open
        # The first attempt of a job that waits for its turn to be followed brings its output once it is followed.
        files = _output_files(folder, on_output, {}) if is_open else []
        return self.connection.follow(files, posixpath.join(folder, layout.OUTCOME))

    def _watch_connection(self) -> None:
        """Report to the job while its host is not connected."""
        if self._unwatch is None:
            connection, entry = self.connection, self.entry

            def show(state: ConnectionState) -> None:
                entry.show_connection(describe_trouble(entry.host, state))

            self._unwatch = connection.link.on_state(show)
            show(connection.link.state)

    def _take_events(self, data: bytes) -> None:
        job = self.entry
        self._lines = self._lines or Lines()
        for event in map(_event, self._lines.feed(data)):
            if event.get("event") == "stage" and event.get("stage") == "result" and not self.is_fetched_apart:
                job.set_state(job.state, "its value is on the way")
                job.show_transfer(self._receiving)
            elif event.get("event") in ("quiet", "active"):
                job.note_quiet(event.get("reason", "") if event["event"] == "quiet" else "", event.get("item", ""))
            elif event.get("event") == "limited":
                job.tell("note", event.get("reason", ""))
            elif event.get("event") in OF_EVENT:
                reason = event.get("reason") or event.get("node") or ""
                job.set_state(OF_EVENT[event["event"]], reason, _time_of(self.host, event))
        self.events_read += len(data)

    async def _see_through(self, waiting: Reply[bytes]) -> None:
        """Take the outcome of each attempt, until one is final.

        Args:
            waiting: What brings the outcome of the present attempt.
        """
        following: Reply[bytes] | None = waiting
        while following is not None:
            arriving = self.arriving_outcome
            try:
                data = await following
                following = self._take_outcome(data) if not self.is_closed else None
            except asyncio.CancelledError:
                # A cancelled task must end: the branch below would report it as a lost connection.
                raise
            except BaseException as error:  # noqa: BLE001 - such as no memory for the value
                # The caller that waits must get the error.
                following = None
                self._lose(error, arriving.kind if arriving is not None else "")
            if following is None and arriving is not None and self.arriving_outcome is arriving:
                # Otherwise the value is on its way to the job, and must stay.
                arriving.drop()
            arriving = None

    def _lose(self, error: BaseException, kind: str = "") -> None:
        """Report that no outcome comes; `kind` is that of one whose value cannot be received."""
        # Closing has cancelled the request, which ends with an error here.
        if self.is_closed:
            return
        if isinstance(error, ResultError):
            self.entry.fail(error, kind)
        else:
            self.entry.lose(_lost(error, self.entry))
        self.end()

    def _take_outcome(self, data: bytes) -> Reply[bytes] | None:
        """Take the outcome of the present attempt; return what brings that of the next one, None if it is final."""
        job, arriving = self.entry, self.arriving_outcome
        try:
            fields = (arriving.published if arriving is not None else None) or outcome.read(data)
            if fields["kind"] in layout.NOT_FINAL:
                return self._open_next(fields)
        except ValueError as unreadable:
            message = f"the job has ended, but its {layout.OUTCOME} is damaged: {unreadable}"
            hint = "read job.logs()"
            job.fail(JobError(message, host=job.host, job=job.id, stage="result", hint=hint, log=job.folder))
            self.end()
            return None
        except HostError as ended:
            # The connection has ended in the meantime.
            self._lose(ended)
            return None
        self.end()
        # The bridge on the host is missing or damaged, so the next job must check it.
        if fields["kind"] == layout.ENVIRONMENT and fields.get("stage") == "start":
            self.host.bridge.distrust()
        elif fields["kind"] in (layout.PAYLOAD_BROKEN, layout.ENVIRONMENT):
            self.host.contents.forget()
            # The environment was chosen for other GPUs than the job has, so the next call must look again.
            if fields.get("stage") == layout.GPU_STAGE:
                self.host.environments.forget()
        # The scheduler never took the job, so nothing of it may stay on the host.
        if self.doubt is not None and fields.get("stage") == "submit":
            job.fail(self.doubt)
            self.cancel_at_scheduler()
            remote_files.remove_folder(self.connection, self.folder)
            return None
        self.has_outcome = True
        self.arriving_outcome = None
        job.settle(fields, arriving)
        return None

    def _open_next(self, fields: dict[str, Any]) -> Reply[bytes]:
        """Follow the attempt that comes after the present one."""
        job = self.entry
        self._ended.add(self.attempt)
        following = fields.get("superseded_by") or self.attempt + 1
        # Each attempt has one outcome, which never changes: outcomes that name one another would be followed for ever.
        if following in self._ended:
            raise ValueError(f"attempts {sorted(self._ended)} name one another as the next")
        if fields["kind"] == layout.PREEMPTED or fields.get("requeued"):
            message = str(fields.get("message") or "the job is requeued")
            job.tell("note", message)
            job.set_state(PENDING, message)
        elif fields.get("retried"):
            job.note_retry(fields.get("message") or "the job is retried")
        elif following > self.attempt:
            job.note_retry(f"attempt {self.attempt} left no result; the scheduler has restarted the job ({following})")
        waiting = self._open_attempt(following)
        self.liveness.watch_heartbeat()
        return waiting

    def is_caught_up(self, sizes: Mapping[str, int]) -> bool:
        """Whether all events of its present attempt have been read, and that had not ended.

        Args:
            sizes: The sizes of files that the host had, by their names below the folder of attempts.
        """
        ended, events = (f"{self.attempt}/{name}" for name in (layout.OUTCOME, layout.EVENTS))
        return ended not in sizes and self.events_read >= sizes.get(events, 0)

    def cannot_conclude(self, error: ClusterfnError) -> None:
        """Report that its script is gone and the host has no disk space, or has lost the files, to publish why."""
        entry = self.entry
        self.end()
        if not isinstance(error, HostDiskFull):
            self.host.bridge.distrust()
        error.host, error.job = entry.host, entry.id
        entry.fail(error)

    def end(self) -> None:
        """Stop following it, and cancel the open requests."""
        awaited, self.awaited = self.awaited, None
        # Requests may still refer to this tracker: without the entry it no longer keeps the job and its value.
        self.is_closed, self.entry = True, ENDED
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()
        self.liveness.end()
        # A job that was rejected has no outcome to wait for.
        if awaited is not None and not awaited.done():
            awaited.cancel()


def _lost(error: BaseException, job: Entry) -> ClusterfnError:
    """Copy the connection's error for this job: other jobs of the host get their own."""
    if not isinstance(error, ClusterfnError):
        return HostError(f"the connection failed: {error!r}", host=job.host, job=job.id)
    lost = copy.copy(error)
    lost.job, lost.hint = job.id, error.hint or f"the job may still run: clusterfn.attach({job.id!r}).result()"
    return lost


def _time_of(host: HostState, event: Mapping[str, str]) -> float | None:
    """Return when an event happened, by the clock of this machine."""
    try:
        when = float(event[_WHEN])
    except (KeyError, ValueError):
        return None
    return host.here(when) if 0 < when < _LATEST else None


def _output_files(folder: str, on_output: Callable[[str, bytes], Any], heard: Mapping[str, int]) -> list[Followed]:
    """Return what an attempt prints, as files to follow."""
    return [
        Followed(posixpath.join(folder, name), functools.partial(on_output, name), heard.get(name, 0))
        for name in (layout.STDOUT, layout.STDERR)
    ]


def _event(line: bytes) -> dict[str, str]:
    """Return the texts in a line of events.jsonl; {} for a damaged line."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    facts = parsed if isinstance(parsed, dict) else {}
    return {name: str(fact) for name, fact in facts.items() if isinstance(fact, str) or name == _WHEN}
