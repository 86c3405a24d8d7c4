"""What is followed on a host, as its tracker knows it: a job, a call of a session, or an element of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.job_states import PENDING

if TYPE_CHECKING:
    from clusterfn.calls.arriving import Arriving
    from clusterfn.errors import ClusterfnError
    from clusterfn.hosts.transfer import Transfer


class Entry:
    """What a `Tracker` follows, and to which it says what becomes of it. `Entry` itself takes no note of anything.

    Attributes:
        id, host, folder: Of the job, for messages.
        submitted_at: When it was sent, by the monotonic clock.
    """

    id = host = folder = ""
    submitted_at = 0.0
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
        """Record that no heartbeat has come for `SILENT_AFTER_S`; that is said again while it lasts."""

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
