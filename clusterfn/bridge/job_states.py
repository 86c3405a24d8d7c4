"""The states of a job as people read them: the host lists jobs by them, and the library follows jobs through them.

Read by both sides, like `layout`: `jobs`, `result`, `cancel` and Ctrl-C say the same of a job.
"""

import time
from collections import namedtuple

from . import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

PENDING, STARTING, RUNNING, SUSPENDED = "PENDING", "STARTING", "RUNNING", "SUSPENDED"
RETURNED, RAISED, DIED, CANCELLED, UNKNOWN = "RETURNED", "RAISED", "DIED", "CANCELLED", "UNKNOWN"
# All other kinds of outcomes mean DIED. The function of a job whose value cannot be pickled has returned, so it counts
# as RETURNED.
FINAL = {
    layout.RETURNED: RETURNED,
    layout.RESULT: RETURNED,
    layout.RAISED: RAISED,
    layout.COMMAND: RAISED,
    layout.CANCELLED: CANCELLED,
}
_LIVE = (PENDING, STARTING, RUNNING, SUSPENDED)
_ENDED = (RETURNED, RAISED, DIED, CANCELLED, UNKNOWN)
# The state of a job -> the states that may follow it, and what brings a job into it. The client's follower reads the
# events, and the supervisor writes them. `Job` takes no other step; docs/architecture.md shows this table.
JOB_STATES = {
    PENDING: ((*_LIVE, *_ENDED), "it was sent; or an attempt was preempted or requeued"),
    STARTING: ((*_LIVE, *_ENDED), "the event `starting`, the first output, or a retry"),
    RUNNING: ((*_LIVE, *_ENDED), "the event `running` or `resumed`"),
    SUSPENDED: ((*_LIVE, *_ENDED), "the event `suspended`, or the scheduler says so"),
    RETURNED: ((RETURNED,), "the final outcome; again when a value that stayed on the host is fetched"),
    RAISED: ((), "the final outcome"),
    DIED: ((), "the final outcome, or the host rejects the job"),
    CANCELLED: ((), "the final outcome, or `Job.cancel` before the job starts"),
    UNKNOWN: ((), "nothing more can be received; a display also says it of a job without a heartbeat"),
}
# An event of an attempt -> the state that it means.
OF_EVENT = {"pending": PENDING, "starting": STARTING, "running": RUNNING, "suspended": SUSPENDED, "resumed": RUNNING}
# The reason of a pending job whose host knows nothing more about it.
HAS_NOT_STARTED = "has not started"
# People read and write this many of an id's sixteen hexadecimal digits.
SHORT = 4
SILENT_AFTER_S = 2 * layout.HEARTBEAT_S + 2


def seen_state(state: str, reason: str, silent_s: float) -> "tuple[str, str]":
    """Return the state of a job that has not ended, and why, given for how long it has sent no heartbeat.

    Example:
        >>> seen_state(RUNNING, "node7", 20.0)
        ('RUNNING', 'no heartbeat from its supervisor for 20 s: it is stopped, or its file system hangs')
        >>> seen_state(RUNNING, "node7", 100.0)[0]
        'UNKNOWN'
    """
    if silent_s < SILENT_AFTER_S or state == SUSPENDED:
        return state, reason
    detail = "no heartbeat from its supervisor for %d s: it is stopped, or its file system hangs" % silent_s
    return (UNKNOWN if silent_s > layout.STALE_AFTER_S else state), detail


class Silence(namedtuple("Silence", ("since", "until"))):
    """The last silence of a job, as its followers see it. A tuple: thousands of jobs share the first one.

    Attributes:
        since: When it began, by the monotonic clock.
        until: Until when it holds, unless it is noticed again.
    """

    __slots__ = ()

    def noticed(self) -> "Silence":
        """Return it after no heartbeat has come for `SILENT_AFTER_S`, perhaps once more."""
        now = time.monotonic()
        return Silence(self.since if now <= self.until else now - SILENT_AFTER_S, now + 2 * SILENT_AFTER_S)

    @property
    def lasts_s(self) -> float:
        """Seconds; 0 without one."""
        now = time.monotonic()
        return float(now - self.since) if now <= self.until else 0.0


NO_SILENCE = Silence(0.0, 0.0)


def in_words(state: str, reason: str, since: "Optional[float]") -> str:
    """Say the state of a job, since when, and why, in one line.

    Args:
        since: Seconds since 1970; None if that is not known.

    Example:
        >>> in_words(PENDING, "waiting for its turn", None)
        'PENDING (waiting for its turn)'
    """
    return "%s%s%s" % (state, " since %s" % clock(since) if since else "", " (%s)" % reason if reason else "")


def clock(when: float) -> str:
    """Return the local time of day; with the date if that was more than half a day ago."""
    return time.strftime("%H:%M:%S" if abs(time.time() - when) < 43200 else "%d %b %H:%M", time.localtime(when))
