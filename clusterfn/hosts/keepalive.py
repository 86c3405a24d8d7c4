"""Keepalive: how often SSH probes a connection, and how the link to an agent pings it and notices that it is dead.

SSH probes only a connection of its own. The ping also notices an agent that hangs, or a jump host that does.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Any

# Each SSH connection is probed this often, and is lost after so many probes without an answer: by ssh itself, by
# paramiko, and by TCP below it.
SSH_PROBE_S, SSH_PROBES = 15, 3
# Ping after so many seconds without any byte from the host.
QUIET_S = 15.0
# Without any byte for so long, the stream counts as dead.
DEAD_S = 45.0
# A ping always gets at least this time for its answer, however long the silence before it was.
ANSWER_S = 20.0
# On a line of this speed, in bytes/s, our own bytes that are still on their way delay an answer.
SLOWEST = 50_000
# Buffers hold no more bytes than this, so no more can delay an answer.
BUFFERED = 8 * 2**20
# Ping an idle connection this often, because an agent ends after 20 minutes of silence.
IDLE_PING_S = 240.0
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
        # The time of the ping that has no answer yet; None if there is none.
        self._pinged_at: float | None = None

    def send(self, size: int) -> None:
        """Record that so many bytes went out, which may delay an answer."""
        self._unanswered = min(self._unanswered + size, BUFFERED)

    def look(self, now: float, busy: bool) -> str:
        """Return WELL; or ASK, once, when a ping is due; or DEAD.

        Args:
            busy: Whether an answer is waited for.
        """
        # Send only one ping: if the first gets no answer, a second would get none either.
        if self._pinged_at is None:
            if now - self.heard <= (QUIET_S if busy else IDLE_PING_S):
                return WELL
            self._pinged_at = now
            return ASK
        # Our own bytes that are on their way may delay the answer on a slow line, so allow for them.
        late = self._unanswered / SLOWEST
        dead = now - max(self.heard, self.moved) >= DEAD_S + late and now - self._pinged_at >= ANSWER_S + late
        return DEAD if dead else WELL


PERIOD_S = 3.0


async def watch(link: weakref.ref[Any]) -> None:
    """Call the `check` of a link every few seconds, for as long as others keep the link."""
    while True:
        await asyncio.sleep(PERIOD_S)
        strong = link()
        if strong is None:
            return
        await strong.check(time.monotonic())
        # Drop the reference: it would keep the link alive during the sleep, and so this loop would never end.
        del strong
