"""Whether the other end of a stream still lives, judged by what was heard and when. Pure."""

from __future__ import annotations

QUIET_S = 15.0  # without a word, ask for one
DEAD_S = 45.0  # without an answer, the stream is dead
ANSWER_S = 20.0  # how long an answer may take at least, whenever it was asked for
SLOWEST = 50_000  # bytes/s of the slowest line on which our own unsent bytes may delay an answer
BUFFERED = 8 * 2**20  # the most bytes that can be on their way
IDLE_PING_S = 240.0  # an agent leaves after 20 minutes of silence
WELL, ASK, DEAD = "well", "ask", "dead"


class Pulse:
    """What was heard of one stream. Times are those of time.monotonic().

    Attributes:
        heard: When something last came.
        moved: When something last came, or a transfer of ours went on.
    """

    def __init__(self, now: float) -> None:
        self.hear(now)

    def hear(self, now: float) -> None:
        """Something came: all is well."""
        self.heard = self.moved = now
        self._unanswered = 0
        self._asked: float | None = None  # when a sign of life was asked for that has not come

    def send(self, size: int) -> None:
        """So many bytes went out, and may delay an answer."""
        self._unanswered = min(self._unanswered + size, BUFFERED)

    def look(self, now: float, busy: bool) -> str:
        """WELL; or ASK, once, for a sign of life; or DEAD.

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
