"""The run of a job: its state, why it is in that, and who listens to changes. Displays read it and listen to it."""

from __future__ import annotations

import concurrent.futures
import functools
import posixpath
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import job_states, layout
from clusterfn.bridge.job_states import PENDING, RUNNING, SHORT, STARTING, UNKNOWN, in_words
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls import conclusion, liveness
from clusterfn.calls.run import Location, Run
from clusterfn.hosts import loop

if TYPE_CHECKING:
    from clusterfn.config.spec import Resources
    from clusterfn.hosts.transfer import Transfer

Listener = Callable[[str, Any], None]
_OUTPUT = (layout.STDOUT, layout.STDERR)
_TIMEOUT_S = 60.0


class JobRun(Run):
    """The run of one job.

    Attributes:
        future: What ends with it; held until then, as it holds the value.
        submitted_at: When it was sent, by the monotonic clock.
        since: When it came into its state, in seconds since 1970; None if that is not known.
        asked: What it asks for, if that is known.
        transfer: Of files that are being sent or received.
        sent_here: Whether this process has sent it, and saw all of it.
        is_stopping: Whether its host was asked to end it.
        on_interrupt: "detach" or "stop".
        has_value: Whether it is run for its value, and not a command for what it prints.
        given: The caller's own path of each argument that is a file, by its path there.
        outputs: Patterns, and where the files that match them go.
        published: Its outcome, as its host published it; empty until then.
        fetched: The value that was kept on the host, once it was asked for.
        settling: Held while it ends.
        of_executor: Whether `cancel()` leaves it alone once it runs, as concurrent.futures has it.
        tail: The end of what it prints, as a notebook shows it; None where none does.
    """

    sent_here, is_stopping, on_interrupt, has_value, of_executor = True, False, "detach", True, False
    asked: Resources | None = None
    transfer: Transfer | None = None
    given: Mapping[str, PurePath] = {}
    outputs: tuple[tuple[str, Path], ...] = ()
    published: Mapping[str, Any] = {}
    tail: bytes | None = None
    shown_notes: frozenset[str] = frozenset()
    _silence, _has_begun, _trouble = job_states.NO_SILENCE, False, ""

    def __init__(self, at: Location, name: str) -> None:
        super().__init__(at)
        self.name = name
        self.submitted_at = time.monotonic()
        self.since: float | None = time.time()
        self.future: concurrent.futures.Future[Any] | None = None
        self.settling = threading.RLock()
        self.fetched: list[Any] = []
        self._listeners: dict[Listener, None] = {}
        # What it has printed while no one listened.
        self._unheard: list[tuple[str, Any]] = []

    def done(self) -> bool:
        future = self.future
        return future is None or future.done()

    def _seen(self) -> tuple[str, str]:
        # Its heartbeat decides how far they can be believed.
        return self._now if self.done() else job_states.seen_state(*self._now, self._silence.lasts_s)

    @property
    def state(self) -> str:
        return self._seen()[0]

    @property
    def reason(self) -> str:
        if self.done():
            return self._now[1]
        return self._trouble or self.moving or self._seen()[1] or self.unanswered

    @property
    def unanswered(self) -> str:
        """Who has not taken it yet, if it was sent some seconds ago; "" otherwise."""
        waits = self._now[0] == PENDING and not self.done()
        return self.queue.unanswered(self.submitted_at) if waits else ""

    @property
    def is_silent(self) -> bool:
        """Whether no heartbeat comes from it, though it has begun and not ended."""
        return not self.done() and self._silence.lasts_s > 0

    @property
    def waits_here(self) -> bool:
        """Whether it waits in this program until its scheduler takes it."""
        return not self.done() and self.queue.waits_here

    @property
    def moving(self) -> str:
        """How far files of it are on their way; "" where none are, or too few for a word."""
        return self.transfer.in_words() if self.transfer is not None else ""

    @property
    def status(self) -> str:
        return in_words(self.state, self.reason, None)

    @property
    def status_since(self) -> str:
        return in_words(self.state, self.reason, self.since)

    def why_silent(self) -> str:
        return f"{self.host} has said nothing of it yet"

    def withdraw(self) -> bool:
        """Keep it from ever starting; false if it has started."""
        if self.queue.stop_sending():
            return True
        answer = conclusion.ask(self, conclusion.WITHDRAWN_JOB).result(_TIMEOUT_S)
        won = conclusion.parse_conclusion(answer, self.at.host.settings, self.folder).get("won") is True
        if won:
            self.queue.leave()
        return won

    def stop(self) -> None:
        """End it and every process of it, whether it waits or runs."""
        if self.done():
            return
        if not self.withdraw():
            self.at.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)
            self.end_if_stuck()
        self.is_stopping = True

    def end_if_stuck(self) -> None:
        """Take it out of the queue, and have the host end it if it does not end itself."""
        self.queue.leave()
        look = functools.partial(liveness.look_until_it_ends, self)
        is_over, on_left = lambda: self.has_outcome, lambda left: self.set_state(self.state, left)
        loop.begin(conclusion.end_if_stuck(self.queue, is_over, on_left, look))

    def listen(self, listener: Listener) -> Callable[[], object]:
        """Call `listener(kind, what)` at every change; return what ends this.

        "state" comes with it, "stdout" and "stderr" with bytes, "note" with a sentence of ours, "done" with None,
        "connection" with why the host is not connected, and with "" once it is again.
        """
        with self.lock:
            self._listeners[listener] = None
            # The first listener gets what was printed before it; kept any longer, the output would grow in memory.
            unheard, self._unheard = self._unheard, []
        for kind, what in unheard:
            listener(kind, what)
        if self.done():
            listener("done", None)
        return lambda: self._listeners.pop(listener, None)

    @property
    def is_shown(self) -> bool:
        """Whether something listens, so that notes are shown."""
        return bool(self._listeners)

    # what follows it says

    def tell(self, kind: str, what: Any) -> None:
        # Output may arrive before the event that reports the start.
        if kind in _OUTPUT and what and self.state == PENDING:
            self.set_state(STARTING)
        if kind == "note":
            self.shown_notes |= {what}
            what = in_one_line(what)
        with self.lock:
            listeners = list(self._listeners)
            if not listeners and kind in _OUTPUT:
                self._unheard.append((kind, what))
        for listener in listeners:
            listener(kind, what)

    def set_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        if self.done():
            return
        # No heartbeat has come, and that alone is no news: the last state stays.
        if state == UNKNOWN:
            state = self._now[0]
        if state in (STARTING, RUNNING):
            self.begin()
        self.step(state, reason, since)

    def begin(self) -> None:
        """Let it run, or tell those who wait that it is cancelled: once, though several threads come."""
        future = self.future
        with self.lock:
            # `set_running_or_notify_cancel` raises when it is called twice.
            has_begun, self._has_begun = self._has_begun, True
            if not has_begun and future is not None:
                future.set_running_or_notify_cancel()

    def step(self, state: str, reason: str, since: float | None = None) -> None:
        """Take a step that the table of states allows."""
        if state in job_states.JOB_STATES[self._now[0]][0]:
            if state != self._now[0] or since is not None:
                self.since = since or time.time()
            self._now = (state, in_one_line(reason))
            self.tell("state", state)

    def note_silence(self) -> None:
        self._silence = self._silence.noticed()
        self.tell("state", self.state)

    def note_quiet(self, why: str, item: str = "") -> None:
        where = f"{why}: clusterfn stack {self.id[:SHORT]} shows where it waits" if why else ""
        if where:
            self.tell("note", f"{self.id[:SHORT]} has {where}")
        self.set_state(self.state, where)

    def show_transfer(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.tell("state", self.state)

    def show_connection(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self.tell("connection", trouble)
