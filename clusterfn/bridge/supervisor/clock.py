"""The clock by which a job's own time is measured: it stands still while the whole job is stopped.

A scheduler suspends a job by stopping all its processes, this one among them, and its limits do not count that time.
Nobody tells a process for how long it was stopped: it sees afterwards that a wait took longer than it may. Whoever
waits in a loop reports that here. A machine that sleeps needs nothing: the kernel's monotonic clock does not run then.
"""

import time

_BUSY_S = 2.0  # a machine with too much to do may wake a process as late as that
_stopped = [0.0]


def now() -> float:
    """Return the seconds for which this process could run, from an arbitrary point on."""
    return time.monotonic() - _stopped[0]


def stopped_s() -> float:
    """Return for how long this process and its children were stopped so far."""
    return _stopped[0]


def overrun(began: float, limit_s: float) -> float:
    """Return by how much a wait took longer than it may; 0.0 if a busy machine explains that.

    Args:
        began: By `time.monotonic`.
    """
    over_s = time.monotonic() - began - limit_s
    return over_s if over_s > _BUSY_S else 0.0


def leave_out(seconds: float) -> None:
    """Do not count these seconds."""
    _stopped[0] += seconds


def sleep(seconds: float) -> None:
    """Sleep, and do not count what that took longer."""
    began = time.monotonic()
    time.sleep(seconds)
    leave_out(overrun(began, seconds))
