"""A run: one job, one call of a session, or one element of a group, on its host. It owns its parts and knows no owner.

Its parts are where it is (`Location`), its place in the queue, its heartbeat, and its turn to be followed. What follows
it says here what becomes of it.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import DIED, FINAL, PENDING, UNKNOWN
from clusterfn.calls import outcome
from clusterfn.calls.queue_place import QueuePlace
from clusterfn.errors import ClusterfnError, HostDiskFull, SubmitError

if TYPE_CHECKING:
    from clusterfn.calls.arriving import Arriving
    from clusterfn.config.spec import ResultPolicy
    from clusterfn.hosts.connection import HostConnection, Reply
    from clusterfn.hosts.host_state import HostState
    from clusterfn.hosts.scheduler_watch import LookCounter
    from clusterfn.hosts.transfer import Transfer


class Location:
    """Where a run is on its host, under which names, and what is accepted of its value.

    Args:
        bridge: The folder of the bridge that it was sent with; "" for this version's.

    Attributes:
        keeps: Whether its value stays on the host until it is asked for.
        scheduler_id: Its id in the scheduler's queue, or its process; "" if that is not known.
        doubt: What the scheduler said at a submission that may have succeeded all the same; None otherwise.
    """

    # Hardly any job changes these, so they are attributes of the class.
    keeps = False
    doubt: SubmitError | None = None

    def __init__(
        self, host: HostState, job_id: str, folder: str, scheduler_name: str, results: ResultPolicy, bridge: str = ""
    ) -> None:
        self.host, self.id, self.folder, self.scheduler_name = host, job_id, folder, scheduler_name
        self.bridge, self.results = bridge, results
        self.scheduler_id = ""
        self.attempt = 1

    @property
    def connection(self) -> HostConnection:
        return self.host.connection

    @property
    def is_fetched_apart(self) -> bool:
        """Whether its value comes only when its outcome is known: it is kept, or its size decides."""
        return self.keeps or self.results.max_bytes is not None

    @property
    def place(self) -> outcome.JobLocation:
        """The same for messages about its value."""
        return outcome.JobLocation(self.host.settings.name, self.id, self.folder, self.results)

    @property
    def work_folder(self) -> str:
        """Where the function runs, unless `cwd` says otherwise."""
        return self.path(layout.WORK)

    def path(self, name: str) -> str:
        """Return a file of the present attempt."""
        return posixpath.join(layout.attempt_dir(self.folder, self.attempt), name)

    def log_path(self, stream: str) -> str:
        """Return a file of the present attempt, such as stdout, or the log of the scheduler."""
        return posixpath.join(self.folder, layout.SCHEDULER_LOG) if stream == "scheduler" else self.path(stream)


class Heartbeat:
    """What is known of a run's heartbeat, and of the looks at its scheduler. `liveness` weighs it."""

    __slots__ = ("ask_from", "failed", "is_listed", "is_looking", "is_silent", "looks", "watch")

    def __init__(self) -> None:
        self.watch: Reply[None] | None = None
        self.looks: LookCounter | None = None
        # Whether each look at the scheduler is reported, with what it says of this run alone.
        self.is_listed = False
        self.is_looking = self.is_silent = False
        self.ask_from = 0.0
        # How often the host could not conclude it.
        self.failed = 0


class Run:
    """One job, call or element that is followed on its host. This base class ignores what is reported to it.

    Attributes:
        has_outcome: Whether its final outcome has come.
        is_closed: Whether it is not followed any more: reports that come late change nothing.
        at_close: Called, in this order, when that begins.
        end: Takes how it has ended, as `settling.end` does for a job. Does not wait.
        requeued: Called when it waits in the scheduler's queue again.
        lock: Held for moments only, in which nothing is waited for.
        hurry: Follows it at once, if it waits for its turn to be followed: it begins, ends, or is asked about.
    """

    # Hardly any job changes these, so they are attributes of the class. An object with up to 30 attributes of its own
    # takes a fifth of the memory of one with more (PEP 412).
    has_outcome = is_closed = False
    _now: tuple[str, str] = (PENDING, "")

    def __init__(self, at: Location) -> None:
        self.at, self.id, self.folder = at, at.id, at.folder
        self.host: str = at.host.settings.name
        self.queue = QueuePlace(at.host, at.folder, at.scheduler_name)
        self.heartbeat = Heartbeat()
        self.lock = threading.Lock()
        self.at_close: list[Callable[[], object]] = []
        self.end: Callable[..., object] = _nothing
        self.requeued: Callable[[], object] = _nothing
        self.hurry: Callable[[], object] = _nothing

    @property
    def state(self) -> str:
        return self._now[0]

    def set_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        """Record its new state, and since when it is in it; now if that is not given."""

    def tell(self, kind: str, what: Any) -> None:
        """Show what it prints, "stdout" or "stderr" with bytes, or a "note" about it, to those who listen."""

    def note_silence(self) -> None:
        """Record that no heartbeat has come for `SILENT_AFTER_S`; the host repeats this while it lasts."""

    def note_quiet(self, why: str, item: str = "") -> None:
        """Record, in words, that it has made no progress for long; "" once it makes progress again."""

    def show_transfer(self, transfer: Transfer) -> None:
        """Show how far files of it are on their way."""

    def show_connection(self, trouble: str) -> None:
        """Show why nothing is received from its host; "" once that is connected again."""

    def settle(self, published: Mapping[str, Any], arriving: Arriving | None) -> None:
        """End it with its outcome, and what has come of its value."""
        self.end(self, FINAL.get(published["kind"], DIED), published, arriving)

    def fail(self, error: ClusterfnError, kind: str = "") -> None:
        """End it with the error of a job that was not accepted, or an outcome of that kind that cannot be received."""
        self.end(self, FINAL.get(kind, DIED), error)

    def lose(self, error: ClusterfnError) -> None:
        """End it with the error after which nothing more can be received; the job may continue."""
        self.end(self, UNKNOWN, error)

    def give_up(self, error: ClusterfnError) -> None:
        """End it: the host cannot conclude it, having no disk space to publish why, or has lost its files."""
        self.close()
        if not isinstance(error, HostDiskFull):
            self.at.host.bridge.distrust()
        error.host, error.job = self.host, self.id
        self.fail(error)

    def close(self) -> None:
        """Follow it no more, and cancel its open requests."""
        self.is_closed = True
        if self.heartbeat.watch is not None:
            self.heartbeat.watch.cancel()
        # What follows it has the run, which must not keep that in turn.
        at_close, self.at_close, self.hurry = self.at_close, [], _nothing
        for stop in at_close:
            stop()


def _nothing(*_: object) -> None:
    """Nothing is to be done."""
