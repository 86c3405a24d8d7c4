"""What the agent does later."""

import heapq
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List


class Timer:
    """One action, and when it is due."""

    __slots__ = ("_action", "_number", "due")

    def __init__(self, due: float, number: int, action: "Callable[[], None]") -> None:
        self.due, self._number, self._action = due, number, action

    def __lt__(self, other: "Timer") -> bool:
        return (self.due, self._number) < (other.due, other._number)

    def drop(self) -> None:
        """Do nothing when it is due, and keep nothing in memory until then: time limits are long, programs are not."""
        self._action = _nothing

    def run(self) -> None:
        self._action()


def _nothing() -> None:
    """Take the place of an action that was dropped."""


class Timers:
    """Runs actions when they are due, in this order; those of the same moment in the order in which they were added."""

    def __init__(self) -> None:
        self.heap: "List[Timer]" = []
        self.counter = 0

    def at(self, seconds: float, action: "Callable[[], None]") -> Timer:
        """Add an action that is due so many seconds from now."""
        self.counter += 1
        timer = Timer(time.monotonic() + seconds, self.counter, action)
        heapq.heappush(self.heap, timer)
        return timer

    def first_due(self) -> float:
        return self.heap[0].due if self.heap else float("inf")

    def run_due(self, now: float) -> None:
        while self.heap and self.heap[0].due <= now:
            heapq.heappop(self.heap).run()
