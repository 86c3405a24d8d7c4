"""Keepalive: when to ping the other end of a stream, when it counts as dead, and what checks it every few seconds."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable

QUIET_S = 15.0  # without a word, ask for one
DEAD_S = 45.0  # without an answer, the stream is dead
ANSWER_S = 20.0  # how long an answer may take at least, whenever it was asked for
SLOWEST = 50_000  # bytes/s of the slowest line on which our own unsent bytes may delay an answer
BUFFERED = 8 * 2**20  # the most bytes that can be on their way
IDLE_PING_S = 240.0  # an agent leaves after 20 minutes of silence
WELL, ASK, DEAD = "well", "ask", "dead"


class Keepalive:
    """When one stream last carried something, and what follows from that. Times are those of time.monotonic().

    Attributes:
        heard: When something last arrived.
        moved: When something last arrived, or a transfer of ours made progress.
    """

    def __init__(self, now: float) -> None:
        self.hear(now)

    def hear(self, now: float) -> None:
        """Record that something came."""
        self.heard = self.moved = now
        self._unanswered = 0
        self._asked: float | None = None  # when a sign of life was asked for that has not come

    def send(self, size: int) -> None:
        """Record that so many bytes went out, which may delay an answer."""
        self._unanswered = min(self._unanswered + size, BUFFERED)

    def look(self, now: float, busy: bool) -> str:
        """Return WELL; or ASK, once, when a ping is due; or DEAD.

        Args:
            busy: Whether an answer is waited for.
        """
        if self._asked is None:  # one question is enough: a second one would be no sign of life either
            if now - self.heard <= (QUIET_S if busy else IDLE_PING_S):
                return WELL
            self._asked = now
            return ASK
        late = self._unanswered / SLOWEST
        dead = now - max(self.heard, self.moved) >= DEAD_S + late and now - self._asked >= ANSWER_S + late
        return DEAD if dead else WELL


PERIOD_S = 3.0


async def watch(checking: weakref.WeakMethod[Callable[[float], Awaitable[None]]]) -> None:
    """Have a stream checked every few seconds, for as long as others keep what checks it."""
    while True:
        await asyncio.sleep(PERIOD_S)
        check = checking()
        if check is None:
            return
        await check(time.monotonic())
        del check  # or its object would live until the next check, and so for ever
