"""What trackers are made of: what is followed on a host."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.bridge.job_states import PENDING
from clusterfn.calls import outcome
from clusterfn.errors import ClusterfnError, SubmitError

if TYPE_CHECKING:
    from clusterfn.calls.arriving import Arriving
    from clusterfn.calls.queue_place import QueuePlace
    from clusterfn.config.spec import ResultPolicy
    from clusterfn.hosts.connection import HostConnection, Reply
    from clusterfn.hosts.host_state import HostState
    from clusterfn.hosts.transfer import Transfer

_TIMEOUT_S = 60.0
_DROP_S = 15.0
# Most hosts and schedulers take a job sooner, so that no note about it is needed.
TAKES_S = 3.0


class Entry:
    """What a `Tracker` follows, and to which it says what becomes of it. `Entry` itself takes no note of anything.

    Attributes:
        id, host, folder: Of the job, for messages.
        submitted_at: When it was sent, by the monotonic clock; infinite if it was not.
    """

    id = host = folder = ""
    submitted_at = float("inf")
    _now: tuple[str, str] = (PENDING, "")

    @property
    def state(self) -> str:
        """As `Job.state`."""
        return self._now[0]

    @property
    def reason(self) -> str:
        """Why it is in that state."""
        return self._now[1]

    def set_state(self, state: str, reason: str = "", since: float | None = None) -> None:
        """Record its new state, and since when it is in it; now if that is not given."""

    def tell(self, kind: str, what: Any) -> None:
        """Show what it prints, "stdout" or "stderr" with bytes, or a "note" about it, to those who listen."""

    def note_silence(self) -> None:
        """Record that no heartbeat has come for `SILENT_AFTER_S`; the host repeats this while it lasts."""

    def note_quiet(self, why: str, item: str = "") -> None:
        """Record, in words, that it has made no progress for long; "" once it makes progress again."""

    def note_retry(self, message: str) -> None:
        """Show that an attempt failed for a transient cause, and another begins."""

    def show_transfer(self, transfer: Transfer) -> None:
        """Show how far files of it are on their way."""

    def show_connection(self, trouble: str) -> None:
        """Show why nothing is received from its host; "" once that is connected again."""

    def settle(self, published: Mapping[str, Any], arriving: Arriving | None) -> None:
        """End it with its outcome, and what has come of its value. Does not wait."""

    def fail(self, error: ClusterfnError, kind: str = "") -> None:
        """End it with the error of a job that was not accepted, or whose outcome cannot be read. Does not wait.

        Args:
            kind: Of the outcome, if only the value cannot be received, for example because it does not fit here.
        """

    def lose(self, error: ClusterfnError) -> None:
        """End it with the error after which nothing more can be received; the job may continue. Does not wait."""


# The entry replaces one that has ended: reports that come late change nothing.
ENDED = Entry()


class FollowedJob:
    """A job, an element of a group or a call of a session: `Follower` follows it, and `LivenessMonitor` watches it.

    Args:
        host: Its host.
        folder: Its own on the host.
        scheduler_name: Its name in the scheduler's queue.
        bridge: The folder of the bridge that it was sent with; "" for this version's.
        keeps: Whether its value stays on the host until it is asked for.
        results: What is accepted of its value; None for what the host's keys say.

    Attributes:
        entry: Gets all reports; set before anything is sent, and let go at the end.
        attempt: The present attempt.
        scheduler_id: Its id in the scheduler's queue, or its process; "" if that is not known.
        doubt: What the scheduler said at a submission that may have succeeded all the same; None otherwise.
        is_closed: Whether its open requests were cancelled, because nothing of it is wanted any more.
    """

    # Hardly any job changes these, so they are attributes of the class (see `JobStatus`).
    doubt: SubmitError | None = None
    is_closed = False

    def __init__(
        self, host: HostState, folder: str, scheduler_name: str, bridge: str = "", keeps: bool = False,
        results: ResultPolicy | None = None,
    ) -> None:  # fmt: skip
        self.host, self.folder, self.scheduler_name = host, folder, scheduler_name
        self.bridge, self.keeps, self._results = bridge, keeps, results
        self.entry: Entry = ENDED
        self.scheduler_id = ""
        self.attempt = 1

    @property
    def connection(self) -> HostConnection:
        """The connection to its host."""
        return self.host.connection

    @property
    def results(self) -> ResultPolicy:
        """What is accepted of its value."""
        return self._results or self.host.settings.result_policy()

    @property
    def is_fetched_apart(self) -> bool:
        """Whether its value comes only when its outcome is known: it is kept, or its size decides."""
        return self.keeps or self.results.max_bytes is not None

    @property
    def place(self) -> outcome.JobLocation:
        """Where it runs, and what is accepted of its value."""
        return outcome.JobLocation(self.entry.host, self.entry.id, self.folder, self.results)

    @property
    def attempt_folder(self) -> str:
        """The folder of the present attempt."""
        return layout.attempt_dir(self.folder, self.attempt)

    @property
    def work_folder(self) -> str:
        """Where the function runs, unless `cwd` says otherwise."""
        return posixpath.join(self.attempt_folder, layout.WORK)

    def log_path(self, stream: str) -> str:
        """Return a file of the present attempt, such as stdout, or the log of the scheduler."""
        if stream == "scheduler":
            return posixpath.join(self.folder, layout.SCHEDULER_LOG)
        return posixpath.join(self.attempt_folder, stream)

    def cancel_at_scheduler(self) -> object:
        """Take it out of the scheduler's queue, if it is there by itself; does not wait."""
        return None

    def skip_turn(self) -> None:
        """Follow it at once, if it waits for its turn to be followed: it begins, ends, or is asked about."""

    def cannot_conclude(self, error: ClusterfnError) -> None:
        """Take why the host cannot conclude it."""
        raise NotImplementedError


class JobBackend(FollowedJob):
    """What is asked of whatever follows a job, or a call of a session, by its `JobEntry` and its `Job`.

    Attributes:
        queue: Its place in the queue of its host.
    """

    queue: QueuePlace

    def cancel_at_scheduler(self) -> object:
        return self.queue.cancel()

    def withdraw(self) -> bool:
        """Keep the job from ever starting; false if it has started."""
        raise NotImplementedError

    def stop(self, on_left: Callable[[str], object]) -> None:
        """Withdraw the job, or end it with its whole process tree; `on_left` takes the names of processes that stay."""
        raise NotImplementedError

    def show(self, job: Any) -> Any:
        """Show a `Job` until it has ended: what it prints, and why it waits; return its value."""
        raise NotImplementedError

    def why_silent(self) -> str:
        """Say why nothing is known of it while it waits."""
        return f"{self.host.settings.name} has said nothing of it yet"

    def watch_output(self, on_output: Callable[[str, bytes], Any]) -> Reply[bytes]:
        """Give what the present attempt prints, and later ones, to `on_output`, with the stream's name."""
        raise NotImplementedError
