"""Follows one run on its host through all its attempts, and says to it what becomes of it.

All of it is read from the run's own files, by an `AgentSource`, or from a stream that says what is appended to them.
Nothing is concluded here: `liveness` has the host do that. Callbacks run on the connection's reader thread, so they
must not wait for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import OF_EVENT, PENDING, STARTING
from clusterfn.calls import liveness, outcome
from clusterfn.calls.arriving import RECEIVING, Arriving
from clusterfn.config.host_text import Lines, json_object
from clusterfn.errors import ClusterfnError, HostError, JobError, ResultError, Unreachable
from clusterfn.hosts import loop
from clusterfn.hosts.rpc.link import ConnectionState, describe_trouble
from clusterfn.hosts.rpc.requests import Followed
from clusterfn.hosts.transfer import Transfer

if TYPE_CHECKING:
    from clusterfn.calls.run import Run
    from clusterfn.hosts.connection import Reply
    from clusterfn.hosts.host_state import HostState

OnOutput = Callable[[str, bytes], Any]
# The field of an event that has its time.
_WHEN = "t"
# The latest time that a clock may show, in seconds since 1970.
_LATEST = 4e9
# The last of what a job prints may come this long after its outcome.
_REST_S = 15.0


class AgentSource:
    """What comes of one run by its files, from the agent of its host.

    Args:
        live: Whether what it prints is followed, for all that listen to the run.

    Attributes:
        events_read: Bytes of the present attempt's events that have come.
        awaited: The answer that brings the outcome of the present attempt.
        arriving: What comes of the value of the present attempt.
        ended: The attempts that have ended.
    """

    _lines: Lines | None = None
    _is_open = False

    def __init__(self, run: Run, live: bool = False) -> None:
        self.run, self._is_live = run, live
        self.events_read = 0
        self.awaited: Reply[Any] | None = None
        self.arriving: Arriving | None = None
        self.ended: set[int] = set()
        self._shown_by: list[OnOutput] = [run.tell] if live else []
        self._unwatch: Callable[[], object] | None = None
        run.at_close.append(self.close)

    def follow(self) -> None:
        """Follow it from its first attempt on. Does not wait."""
        self._see_through(self.open(1))

    def _see_through(self, waiting: Reply[bytes]) -> None:
        loop.begin(see_through(self.run, self, waiting))
        # A refusal may have closed it in the meantime, before there was a request to cancel.
        if self.run.is_closed:
            self.close()

    def open(self, attempt: int) -> Reply[bytes]:
        """Follow an attempt from its beginning: its events and what it prints; return what brings its outcome."""
        return self.follow_files(self.begin(attempt), {})

    def begin(self, attempt: int) -> Sequence[OnOutput]:
        """Begin with an attempt; return what gets its output."""
        with self.run.lock:
            self.run.at.attempt, self._is_open = attempt, True
            shown_by = list(self._shown_by)
        if self._unwatch is None:
            link = self.run.at.connection.link
            self._unwatch = link.on_state(self._show_connection)
            self._show_connection(link.state)
        self._lines, self.events_read = None, 0
        return shown_by

    def follow_files(self, shown_by: Sequence[OnOutput], heard: Mapping[str, int]) -> Reply[bytes]:
        """Follow the files of the present attempt, from the bytes that were heard; return what brings its outcome."""
        at, until = self.run.at, self.run.at.path(layout.OUTCOME)
        files = [Followed(at.path(layout.EVENTS), self.take_events, heard.get(layout.EVENTS, 0))]
        files += [file for on_output in shown_by for file in self._output_files(on_output, heard)]
        if at.is_fetched_apart:
            waiting = at.connection.follow(files, until)
        else:
            arriving = self.arriving = Arriving(at.place)
            value = [(at.path(layout.VALUE), arriving.write)]
            waiting = at.connection.follow(files, until, with_files=value, on_content=arriving.announce)
        self.awaited = waiting
        return waiting

    def take_rest(self) -> None:
        """Take note that the files of the present attempt have been read to their ends."""

    @contextlib.contextmanager
    def shown_output(self, on_output: OnOutput) -> Iterator[Callable[[], None]]:
        """Pass on what it prints from its beginning, unless listeners get that; give what awaits the last of it."""
        if self._is_live:
            yield lambda: None
            return

        def heard(stream: str, data: bytes) -> None:
            if data and self.run.state == PENDING:
                self.run.set_state(STARTING)
            on_output(stream, data)

        def await_last() -> None:
            # Without an outcome there is no output to wait for: the job was rejected.
            if self.run.has_outcome:
                # The outcome is known, and the output stays on the host.
                with contextlib.suppress(Unreachable):
                    last.exception(_REST_S)

        last = self.watch_output(heard)
        try:
            yield await_last
        finally:
            self._shown_by.remove(heard)
            last.cancel()

    def watch_output(self, on_output: OnOutput) -> Reply[bytes]:
        """Give `on_output` what attempts print from now on, the present one from its beginning; return its outcome."""
        self.run.hurry()
        with self.run.lock:
            # The lock keeps an attempt from beginning between these two lines: its output would come twice.
            self._shown_by.append(on_output)
            # The first attempt of a job that waits for its turn to be followed brings its output once it is followed.
            files = self._output_files(on_output, {}) if self._is_open else []
            until = self.run.at.path(layout.OUTCOME)
        return self.run.at.connection.follow(files, until)

    def _output_files(self, on_output: OnOutput, heard: Mapping[str, int]) -> list[Followed]:
        return [
            Followed(self.run.at.path(name), functools.partial(on_output, name), heard.get(name, 0))
            for name in (layout.STDOUT, layout.STDERR)
        ]

    def _show_connection(self, state: ConnectionState) -> None:
        self.run.show_connection(describe_trouble(self.run.host, state))

    def take_events(self, data: bytes) -> None:
        self._lines = self._lines or Lines()
        for line in self._lines.feed(data):
            self._take_event(json_object(line))
        self.events_read += len(data)

    def _take_event(self, facts: Mapping[str, Any]) -> None:
        event = {name: str(fact) for name, fact in facts.items() if isinstance(fact, str) or name == _WHEN}
        run, what = self.run, event.get("event")
        if run.is_closed:
            return
        if what == "stage" and event.get("stage") == "result" and not run.at.is_fetched_apart:
            run.set_state(run.state, "its value is on the way")
            run.show_transfer(Transfer(RECEIVING, [self.awaited] if self.awaited is not None else []))
        elif what in ("quiet", "active"):
            run.note_quiet(event.get("reason", "") if what == "quiet" else "", event.get("item", ""))
        elif what == "limited":
            run.tell("note", event.get("reason", ""))
        elif what in OF_EVENT:
            reason = event.get("reason") or event.get("node") or ""
            run.set_state(OF_EVENT[what], reason, _time_of(run.at.host, event))

    def is_caught_up(self, sizes: Mapping[str, int]) -> bool:
        """Whether all events of its present attempt have been read, and that had not ended, by the sizes of files."""
        ended, events = (f"{self.run.at.attempt}/{name}" for name in (layout.OUTCOME, layout.EVENTS))
        return ended not in sizes and self.events_read >= sizes.get(events, 0)

    def close(self) -> None:
        awaited, self.awaited = self.awaited, None
        unwatch, self._unwatch = self._unwatch, None
        if unwatch is not None:
            unwatch()
        # A job that was rejected has no outcome to wait for.
        if awaited is not None and not awaited.done():
            awaited.cancel()


async def see_through(run: Run, source: AgentSource, waiting: Reply[bytes]) -> None:
    """Follow a run to its end: take the outcome of each attempt, which `waiting` brings first, until one is final."""
    following: Reply[bytes] | None = waiting
    while following is not None:
        arriving = source.arriving
        try:
            data = await following
            following = take_outcome(run, source, data) if not run.is_closed else None
        except asyncio.CancelledError:
            # A cancelled task must end: the branch below would report it as a lost connection.
            raise
        except BaseException as error:  # noqa: BLE001 - such as no memory for the value
            # The caller that waits must get the error.
            following = None
            lose(run, error, arriving)
        if following is None and arriving is not None and source.arriving is arriving:
            # Otherwise the value is on its way to the job, and must stay.
            arriving.take()
        arriving = None


def take_outcome(run: Run, source: AgentSource, data: bytes) -> Reply[bytes] | None:
    """Take the outcome of the present attempt; return what brings that of the next one, None if it is final."""
    source.take_rest()
    arriving = source.arriving
    try:
        fields = (arriving is not None and arriving.published) or outcome.read(data)
        if fields["kind"] in layout.NOT_FINAL:
            return _open_next(run, source, fields)
    except ValueError as unreadable:
        message = f"the job has ended, but its {layout.OUTCOME} is damaged: {unreadable}"
        hint = "read job.logs()"
        run.fail(JobError(message, host=run.host, job=run.id, stage="result", hint=hint, log=run.folder))
        run.close()
        return None
    run.close()
    distrust(run.at.host, fields)
    # The scheduler never took the job, so nothing of it may stay on the host.
    if run.at.doubt is not None and fields.get("stage") == "submit":
        run.fail(run.at.doubt)
        run.queue.cancel()
        run.queue.remove_folder()
    else:
        run.has_outcome = True
        source.arriving = None
        run.settle(fields, arriving)
    return None


def _open_next(run: Run, source: AgentSource, fields: Mapping[str, Any]) -> Reply[bytes]:
    present = run.at.attempt
    source.ended.add(present)
    following: int = fields.get("superseded_by") or present + 1
    # Each attempt has one outcome, which never changes: outcomes that name one another would be followed for ever.
    if following in source.ended:
        raise ValueError(f"attempts {sorted(source.ended)} name one another as the next")
    state, message = STARTING, f"attempt {present} left no result; the scheduler has restarted the job ({following})"
    if fields["kind"] == layout.PREEMPTED or fields.get("requeued"):
        state, message = PENDING, str(fields.get("message") or "the job is requeued")
    elif fields.get("retried"):
        message = fields.get("message") or "the job is retried"
    if following > present:
        run.tell("note", message)
        run.set_state(state, message)
    waiting = source.open(following)
    liveness.watch_heartbeat(run)
    if fields["kind"] == layout.PREEMPTED:
        run.requeued()
    return waiting


def distrust(host: HostState, fields: Mapping[str, Any]) -> None:
    """Have the next call look again at what this outcome says is missing or damaged on the host."""
    if fields["kind"] == layout.ENVIRONMENT and fields.get("stage") == "start":
        host.bridge.distrust()
    elif fields["kind"] in (layout.PAYLOAD_BROKEN, layout.ENVIRONMENT):
        host.contents.distrust()
        # The environment was chosen for other GPUs than the job has, or has changed since.
        if fields["kind"] == layout.ENVIRONMENT:
            host.environments.forget()


def lose(run: Run, error: BaseException, arriving: Arriving | None = None) -> None:
    """Report that no outcome comes, or that its value, which was `arriving`, cannot be received."""
    # Closing has cancelled the request, which ends with an error here.
    if run.is_closed:
        return
    if isinstance(error, ResultError):
        run.fail(error, arriving.published.get("kind", "") if arriving is not None else "")
    else:
        # Other jobs of the host get their own copies of the connection's error.
        failed = HostError(f"the connection failed: {error!r}", host=run.host)
        lost = copy.copy(error) if isinstance(error, ClusterfnError) else failed
        lost.job, lost.hint = run.id, lost.hint or f"the job may still run: clusterfn.attach({run.id!r}).result()"
        run.lose(lost)
    run.close()


def _time_of(host: HostState, event: Mapping[str, str]) -> float | None:
    """Return when an event happened, by the clock of this machine."""
    try:
        when = float(event[_WHEN])
    except (KeyError, ValueError):
        return None
    return host.here(when) if 0 < when < _LATEST else None
