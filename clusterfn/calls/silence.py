"""For how long a job has sent no heartbeat, as its followers see it. A tuple: thousands of jobs share the first one."""

from __future__ import annotations

import time
from typing import NamedTuple

from clusterfn.bridge.job_states import SILENT_AFTER_S


class Silence(NamedTuple):
    """The last silence of a job, by the monotonic clock.

    Attributes:
        since: When it began.
        until: Until when it holds, unless it is noticed again.
    """

    since: float = 0.0
    until: float = 0.0

    def noticed(self) -> Silence:
        """Return it after no heartbeat has come for `SILENT_AFTER_S`, perhaps once more."""
        now = time.monotonic()
        return Silence(self.since if now <= self.until else now - SILENT_AFTER_S, now + 2 * SILENT_AFTER_S)

    @property
    def lasts_s(self) -> float:
        """Seconds; 0 without one."""
        now = time.monotonic()
        return now - self.since if now <= self.until else 0.0
