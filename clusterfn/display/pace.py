"""How long something has taken, and how much longer it will: for maps, sweeps and builds."""

from __future__ import annotations

from collections.abc import Callable

from clusterfn.display.console import as_clock

# Less work than this says nothing about the rest.
_SURE_S = 1.0


class Pace:
    """Measures from the moment at which work was first seen, so that waiting in a queue does not count.

    Args:
        clock: Seconds that never go back.
        began: Since when the elapsed time is counted.
    """

    def __init__(self, clock: Callable[[], float], began: float) -> None:
        self._clock = clock
        self._began = began
        self._from: tuple[float, int] | None = None

    def elapsed(self) -> str:
        """Return such as "00:12 elapsed"."""
        return f"{as_clock(self._clock() - self._began)} elapsed"

    def left(self, done: int, total: int, works: bool = True) -> str:
        """Return such as "00:20 left"; "" while that cannot be said.

        Args:
            done, total: How much is done, of how much.
            works: Whether anything has begun.
        """
        now = self._clock()
        if self._from is None:
            if not works and not done:
                return ""
            self._from = (now, done)
        since, before = self._from
        if done <= before or done >= total or now - since < _SURE_S:
            return ""
        return f"{as_clock((now - since) / (done - before) * (total - done))} left"
