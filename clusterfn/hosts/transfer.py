"""Bytes on their way to a host or from it: how many of how many, how fast, how much longer; and how to stop sending.

One for both directions. Knows nothing of jobs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.supervisor.text import format_duration, format_size
from clusterfn.errors import HostError
from clusterfn.hosts import loop

if TYPE_CHECKING:
    from clusterfn.hosts.connection import HostConnection, Reply

# Where output is not redrawn, each report is a line that stays, so reports are rare.
_LARGE = 10 << 20
# A transfer of fewer bytes is shown only if it takes longer than this.
_LONG_S = 2.0
# The rate is the mean over this time.
_WINDOW_S = 10.0
SENDING = "sending"


class Transfer:
    """Files on their way.

    Args:
        doing: What is done with them, as the first word of a line: "sending", "receiving its value".
        replies: The requests that move them.
        size: Bytes in all, where not every request of it has been made yet.
    """

    def __init__(self, doing: str, replies: Iterable[Reply[Any]] = (), size: int | None = None) -> None:
        self.doing = doing
        self._replies = list(replies)
        self._size = size
        # Several displays may measure at once. Each replaces the whole tuple, so at worst a measurement is lost.
        self._points: tuple[tuple[float, int], ...] = ()
        self._shown_from: float | None = None

    def forget(self) -> None:
        """Drop the requests, which have all been answered: a program may follow thousands of jobs."""
        self._replies = []

    def add(self, reply: Reply[Any]) -> None:
        """Add a request that moves files of it."""
        self._replies.append(reply)

    @property
    def size(self) -> int:
        """Bytes in all, as far as they are known."""
        return sum(reply.size or 0 for reply in self._replies) if self._size is None else self._size

    @property
    def moved(self) -> int:
        """Bytes that have been sent or have come; what the host had already counts as sent."""
        return sum(reply.size if reply.done() and reply.size else reply.moved for reply in self._replies)

    @property
    def progress(self) -> tuple[int, int] | None:
        """Bytes that were moved, of how many; None where there is nothing to show."""
        return (self.moved, self.size) if self.size and self.goes_on else None

    @property
    def goes_on(self) -> bool:
        """Whether bytes are still to move."""
        return self.moved < self.size if self._size is not None else not all(r.done() for r in self._replies)

    def in_words(self) -> str:
        """Return such as "sending 38 of 114 MB, 3.0 MB/s, 25 s left"; "" where there is too little to mention."""
        amounts = self.amounts()
        return f"{self.doing} {amounts}" if amounts else ""

    def amounts(self) -> str:
        """Return the same without the verb. Call it repeatedly: it takes the rate from the time between calls."""
        now, moved, size = time.monotonic(), self.moved, self.size
        if not size or not self.goes_on or (self.doing != SENDING and not moved):
            return ""
        points = self._points
        if points and moved < points[-1][1]:
            # After a reconnect some bytes are sent again, so the earlier measurements no longer give the rate.
            points = ()
        # Several displays may ask at short intervals, so measure at most five times a second.
        if not points or now - points[-1][0] >= 0.2:
            points = (*points, (now, moved))
        # Always keep two measurements, because one alone gives no rate.
        while now - points[0][0] > _WINDOW_S and len(points) > 2:
            points = points[1:]
        self._points = points
        began, before = points[0]
        # The rate is 0 until one second of measurements exists.
        rate = int((moved - before) / (now - began)) if now - began >= 1.0 else 0
        self._shown_from = now if self._shown_from is None else self._shown_from
        if size < _LARGE and now - self._shown_from < _LONG_S:
            return ""
        amount = f"{format_size(moved)} of {format_size(size)}" if moved else format_size(size)
        if not rate:
            return amount
        return f"{amount}, {format_size(rate)}/s, {format_duration(round((size - moved) / rate))} left"


class Sending(Transfer):
    """All that a job needs on its way to the host.

    Args:
        uploads: What is sent; the last of them makes the job's own folder.
    """

    def __init__(self, uploads: Sequence[Reply[Any]]) -> None:
        super().__init__(SENDING, uploads)
        self.dropped = False
        # Called once it is certain that the job will never start.
        self.on_dropped: Callable[[], None] | None = None

    @property
    def unsent(self) -> bool:
        """Whether some of it has not left this machine."""
        return any(not reply.done() and reply.moved < (reply.size or 0) for reply in self._replies)

    def drop(self, connection: HostConnection, last: str, timeout_s: float) -> bool:
        """Send no more of it; return whether that keeps the job from ever starting.

        Args:
            last: What is there once all of it has arrived, and without which nothing starts.

        Raises:
            HostError: All of it had left, and the host does not say whether it has arrived.
        """
        if not self._replies or self._replies[-1].done():
            return False
        left, self.dropped = not self.unsent, True
        # Cancel the last upload first, because the job's folder that it makes is what lets the job start.
        for reply in reversed(self._replies):
            reply.cancel()
        question: Reply[list[bool]] | None = None
        try:
            # A request that is cancelled here may still have been carried out there, so ask.
            question = connection.have([last])
            self._conclude(not question.result(timeout_s)[0])
        except HostError:
            # If some of it never left this machine, the host cannot have all of it, whatever it would answer.
            if left:
                self.dropped = False
                if question is not None:
                    loop.begin(self._conclude_late(question))
                raise
            self._conclude(True)
        return self.dropped

    async def _conclude_late(self, question: Reply[list[bool]]) -> None:
        with contextlib.suppress(HostError):
            # If the host never answers, nothing more can be learnt.
            self._conclude(not (await question)[0])

    def _conclude(self, dropped: bool) -> None:
        self.dropped = dropped
        if dropped and self.on_dropped is not None:
            self.on_dropped()
