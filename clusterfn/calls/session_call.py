"""One call of a session: to its user a Job, on the host a folder below the session's own.

What becomes of it is read from its own files; where its session ends without it, `sessions` says so. Made by
`sessions`.
"""

from __future__ import annotations

import posixpath
from typing import Any, TypeVar

from clusterfn.bridge import layout
from clusterfn.calls.job import Job
from clusterfn.calls.job_tracker import Tracker
from clusterfn.calls.payload import Payload

R = TypeVar("R")
_TIMEOUT_S = 60.0


class Call(Job[R]):
    """One call.

    Args:
        held: The session's job.
        payload: The call as bytes, in case that it must be sent again.
    """

    def __init__(self, held: Job[Any], payload: Payload, tracker: CallTracker) -> None:
        super().__init__(f"{held.id}/{tracker.number}", tracker.name, held.host, tracker.folder, tracker)
        self.held = held
        self.tracker = tracker
        self.payload: Payload | None = payload
        self.add_done_callback(lambda _: setattr(self, "payload", None))

    def stack(self) -> str:
        """Where the session is now; this call, if it is the one that runs."""
        return self.held.stack()

    def move(self, held: Job[Any], tracker: CallTracker) -> None:
        """Another session takes it, as the first ended before its turn came."""
        self.tracker.end()
        self.held, self.folder = held, tracker.folder
        self.tracker = self._tracker = tracker


class CallTracker(Tracker):
    """Follows one call.

    Args:
        holder: The tracker of the session's job.
        number: Which of its calls.
        live: Whether what it prints is followed.
    """

    def __init__(self, holder: Tracker, number: int, name: str, live: bool) -> None:
        super().__init__(holder.session, posixpath.basename(holder.folder), name, live)
        self.number, self.name = number, name
        self._holder = holder
        self.folder = layout.call_dir(holder.folder, number)
        self.scheduler_name = f"{holder.scheduler_name}/{number}"  # nobody looks for it by itself

    @property
    def taken(self) -> str:
        """What stands once it runs, or was withdrawn."""
        return posixpath.join(self.folder, layout.TAKEN)

    @property
    def outcome(self) -> str:
        """What stands once it has ended."""
        return posixpath.join(self.attempt_folder, layout.OUTCOME)

    def log_path(self, stream: str) -> str:
        """The call's own, or the session's for what the scheduler said."""
        return self._holder.log_path(stream) if stream == "scheduler" else super().log_path(stream)

    def withdraw(self) -> bool:
        """Keep it from ever starting; false if it has started."""
        if self._drop():
            return True
        won = self.connection.run(["mkdir", "--", self.taken]).result(_TIMEOUT_S).rc == 0
        if won:
            self._put_cancel()
        return won

    def stop(self) -> None:
        """End it and every process of it; the session goes on."""
        if not self.withdraw():
            self._put_cancel()

    def _put_cancel(self) -> None:
        self.connection.put(posixpath.join(self.folder, layout.CANCEL), b"").result(_TIMEOUT_S)
