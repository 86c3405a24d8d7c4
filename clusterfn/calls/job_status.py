"""What is known of a job while it is followed: its state, why it is in that, and who listens to changes.

What follows the job on its host reports here. Displays read it and listen to it.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import (
    JOB_STATES,
    NO_SILENCE,
    PENDING,
    RUNNING,
    SHORT,
    STARTING,
    UNKNOWN,
    in_words,
    seen_state,
)
from clusterfn.bridge.supervisor.text import in_one_line
from clusterfn.calls.queue_tracker import Entry

if TYPE_CHECKING:
    from clusterfn.calls.queue_tracker import JobBackend
    from clusterfn.config.spec import Resources
    from clusterfn.hosts.transfer import Transfer

Listener = Callable[[str, Any], None]
_OUTPUT = (layout.STDOUT, layout.STDERR)


class JobStatus(Entry):
    """What is known of one job.

    Args:
        job_id, name, host, folder: As the attributes of `Job`.
        tracker: What follows it.
        future: What ends with it; held until then, as it holds the value.

    Attributes:
        since: When it came into its state, in seconds since 1970; None if that is not known.
        asked: What it asks for, if that is known.
        transfer: Of files that are being sent or received.
        sent_here: Whether this process has sent it, and saw all of it.
        is_stopping: Whether its host was asked to end it.
        on_interrupt: "detach" or "stop".
        has_value: Whether it is run for its value, and not a command for what it prints.
    """

    # Hardly any job changes these, so they are attributes of the class. An object with up to 30 attributes of its own
    # takes a fifth of the memory of one with more (PEP 412).
    sent_here, is_stopping, on_interrupt, has_value, _trouble = True, False, "detach", True, ""
    asked: Resources | None = None
    transfer: Transfer | None = None
    _silence = NO_SILENCE
    _has_begun = False
    _shown_notes: frozenset[str] = frozenset()

    def __init__(
        self, job_id: str, name: str, host: str, folder: str, tracker: JobBackend,
        future: concurrent.futures.Future[Any],
    ) -> None:  # fmt: skip
        self.id, self.name, self.host, self.folder, self.tracker = job_id, name, host, folder, tracker
        self.submitted_at = time.monotonic()
        self.since: float | None = time.time()
        self._future: concurrent.futures.Future[Any] | None = future
        self._listeners: list[Listener] = []
        self._unheard: list[tuple[str, Any]] = []
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Whether it has ended."""
        future = self._future
        return future is None or future.done()

    @property
    def state(self) -> str:
        """As `Job.state`."""
        return self._seen()[0]

    @property
    def reason(self) -> str:
        """Why it is in that state, or why nothing is received of it, if there is something to say."""
        if self.done():
            return self._now[1]
        return self._trouble or self.moving or self._seen()[1] or self.unanswered

    def _seen(self) -> tuple[str, str]:
        """Return state and reason, as far as its heartbeat lets them be believed."""
        return self._now if self.done() else seen_state(*self._now, self._silence.lasts_s)

    @property
    def unanswered(self) -> str:
        """Who has not taken it yet, if it was sent some seconds ago; "" otherwise."""
        waits = self._now[0] == PENDING and not self.done()
        return self.tracker.queue.unanswered(self.submitted_at) if waits else ""

    @property
    def is_silent(self) -> bool:
        """Whether no heartbeat comes from it, though it has begun and not ended."""
        return not self.done() and self._silence.lasts_s > 0

    @property
    def waits_here(self) -> bool:
        """Whether it waits in this program until its scheduler takes it."""
        return not self.done() and self.tracker.queue.waits_here

    @property
    def moving(self) -> str:
        """How far files of it are on their way; "" where none are, or too few for a word."""
        return self.transfer.in_words() if self.transfer is not None else ""

    @property
    def status(self) -> str:
        """State and reason in one line."""
        return in_words(self.state, self.reason, None)

    @property
    def status_since(self) -> str:
        """The same, and since when."""
        return in_words(self.state, self.reason, self.since)

    def stop(self) -> None:
        """End it and every process of it, whether it waits or runs."""
        if not self.done():
            self.tracker.stop(lambda left: self.set_state(self.state, left))
            self.is_stopping = True

    # what listens

    @property
    def is_shown(self) -> bool:
        """Whether something listens, so that notes are shown."""
        return bool(self._listeners)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(kind, what)` at every change: "state" with it, "stdout" and "stderr" with bytes, "done".

        "note" comes with a sentence of ours.
        "connection" comes with why the host is not connected, and with "" once it is again.

        Returns:
            What ends this.
        """
        with self._lock:
            self._listeners.append(listener)
            # The first listener gets what was printed before it; kept any longer, the output would grow in memory.
            unheard, self._unheard = self._unheard, []
        for kind, what in unheard:
            listener(kind, what)
        if self.done():
            listener("done", None)

        def unlisten() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return unlisten

    def tell(self, kind: str, what: Any) -> None:
        """Pass it on to the listeners; the first one also gets what was printed before."""
        # Output may arrive before the event that reports the start.
        if kind in _OUTPUT and what and self.state == PENDING:
            self.set_state(STARTING)
        if kind == "note":
            self._shown_notes |= {what}
            what = in_one_line(what)
        with self._lock:
            listeners = list(self._listeners)
            if not listeners and kind in _OUTPUT:
                self._unheard.append((kind, what))
        for listener in listeners:
            listener(kind, what)

    # what the tracker says

    def set_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        future = self._future
        if future is None or future.done():
            return
        # No heartbeat has come, and that alone is no news: the last state stays.
        if state == UNKNOWN:
            state = self._now[0]
        if state in (STARTING, RUNNING):
            self._begin(future)
        self._step(state, reason, since)

    def _begin(self, future: concurrent.futures.Future[Any]) -> None:
        """Let it run, or tell those who wait that it is cancelled: once, though several threads come."""
        with self._lock:
            # `set_running_or_notify_cancel` raises when it is called twice.
            has_begun, self._has_begun = self._has_begun, True
            if not has_begun:
                future.set_running_or_notify_cancel()

    def _step(self, state: str, reason: str, since: float | None = None) -> None:
        """Take a step that the table of states allows."""
        if state not in JOB_STATES[self._now[0]][0]:
            return
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

    def note_retry(self, message: str) -> None:
        self.tell("note", message)
        self.set_state(STARTING, message)

    def show_transfer(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.tell("state", self.state)

    def show_connection(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self.tell("connection", trouble)
