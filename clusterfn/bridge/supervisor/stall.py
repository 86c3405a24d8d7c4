"""Whether a job has stopped doing anything: it prints nothing, and its processes use no CPU time worth the name.

A thread that wakes up to look for work does not count as work. Decides nothing but that.
"""

import os
import time

from ..layout import STALLED
from . import process_tree
from .text import duration
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple

_IDLE = 0.005  # of one CPU, over the whole time
_EVERY_S = 1.0


class Stall:
    """Counts for how long a job has done nothing; a machine that slept meanwhile does not count.

    Args:
        limit_s: For how long it may; None: nothing is looked at.
    """

    def __init__(self, limit_s: "Optional[float]") -> None:
        self._limit_s = limit_s
        self._every_s = min(_EVERY_S, (limit_s or 0.0) / 10)
        self._looked: "Optional[float]" = None
        self._quiet_s = 0.0
        self._mark: "Tuple[float, int]" = (0.0, 0)  # CPU seconds and bytes of output when it last did something

    def note(self) -> "list[str]":
        """What to say if it cannot be known here."""
        missing = self._limit_s is not None and not os.path.exists(process_tree.PROC)
        return ["stall_timeout was not watched: this machine has no %s" % process_tree.PROC] if missing else []

    def over(self, pids: "list[int]", collected_s: float, printed: int) -> bool:
        """Whether it has done nothing for too long; looks, if it is time to.

        Args:
            pids: The job's processes.
            collected_s: CPU seconds of those that have ended and were collected.
            printed: Bytes of output so far.
        """
        now = time.monotonic()
        if self._limit_s is None or (self._looked is not None and now < self._looked + self._every_s):
            return False
        passed = 0.0 if self._looked is None else min(now - self._looked, 10 * self._every_s)
        self._looked = now
        used = collected_s + sum(process_tree.cpu_s(pid) for pid in pids)
        if not pids or printed != self._mark[1] or abs(used - self._mark[0]) > _IDLE * self._limit_s:
            self._mark, self._quiet_s = (used, printed), 0.0
        else:
            self._quiet_s += passed
        return self.is_over

    @property
    def is_over(self) -> bool:
        """Whether it had done nothing for too long at the last look."""
        return self._limit_s is not None and self._quiet_s >= self._limit_s

    def in_words(self) -> str:
        """What it has not done for so long."""
        return "printed nothing and used no CPU for %s" % duration(self._limit_s or 0.0)

    def verdict(self, stacks: "list[str]") -> Verdict:
        """What that means for the job."""
        limit_s = self._limit_s or 0.0
        return Verdict(
            STALLED,
            "the job printed nothing and used no CPU time for %s" % duration(limit_s),
            evidence=stacks,
            hint="look where its threads wait; if that is right, print now and then, or give it stall_timeout=%r"
            % ("%dmin" % max(2, round(limit_s / 30.0))),
        )
