"""Look again and again at files that should change, such as heartbeats: all of one interval in one round."""

import collections
import time

from .file_watcher import TIME_SHARE
from .frames import TURN_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, Protocol

    class Looking(Protocol):
        """What looks at a file at intervals."""

        @property
        def ended(self) -> bool: ...
        def check_content(self) -> None: ...
        def safely(self, action: Callable[[], Any]) -> Any: ...


class StillWatcher:
    """Has all requests of one interval look in one round, which leaves most of the time to other requests.

    On a slow file server a round takes longer than the interval; the next one begins later then.

    Args:
        at: As `Agent.at`.
    """

    def __init__(self, at: "Callable[[float, Callable[[], None]], object]") -> None:
        self.at = at
        self.open: "Dict[float, Dict[Looking, None]]" = {}

    def add(self, request: "Looking", every_s: float) -> None:
        new = every_s not in self.open
        self.open.setdefault(every_s, {})[request] = None
        if new:
            self.look(every_s, collections.deque(), 0.0)

    def drop(self, request: "Looking") -> None:
        for requests in self.open.values():
            requests.pop(request, None)

    def look(self, every_s: float, remaining: "Deque[Looking]", used_s: float) -> None:
        """Look for a turn at those of this round that are left, then again."""
        if not remaining:
            remaining.extend(self.open[every_s])
        if not remaining:
            del self.open[every_s]
            return
        began = now = time.monotonic()
        while remaining and now - began < TURN_S:
            request = remaining.popleft()
            if not request.ended:
                request.safely(request.check_content)
            now = time.monotonic()
        used_s += now - began
        if remaining:
            self.at(0.0, lambda: self.look(every_s, remaining, used_s))
        else:
            # All look at the same moment: a thousand jobs wake this process no more often than one.
            pause_s = max(every_s - now % every_s if every_s else 0.0, used_s / TIME_SHARE)
            self.at(pause_s, lambda: self.look(every_s, remaining, 0.0))
