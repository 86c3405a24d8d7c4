"""Have the kernel wake this process if a signal has stopped it, and kill it if it no longer does its work.

A function can stop its supervisor (`os.kill(os.getppid(), SIGSTOP)`), and a file system can hang it. On a machine
without a scheduler nothing else would then enforce the job's limits, or end it on request. Timers of the kernel do
both, without another process: they run while this one is stopped. It sets them again with each heartbeat, so that they
go off only where it has none. Schedulers suspend jobs by the same signal, and enforce limits: no timers there.
"""

import signal
import struct
import sys

from ..agent.libc import libc_function, pointer_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

WAKE_AFTER_S = 8  # longer than from one heartbeat to the next
# After the time limit: a supervisor that is alive has published that by then, even on a slow file system.
KILL_AFTER_S = 60
_CLOCK_MONOTONIC, _BY_SIGNAL, _EVENT_BYTES = 1, 0, 64
_OLDER = "librt.so.1"  # has the timers where the C library has them not (glibc before 2.34)


class Watchdog:
    """The timers of this process. Does nothing where the kernel or this Python has none."""

    def __init__(self) -> None:
        self._wake, self._kill = _Timer(signal.SIGCONT), _Timer(signal.SIGKILL)

    def alive(self) -> None:
        """Be woken if this is not said again within some seconds."""
        self._wake.set(WAKE_AFTER_S, WAKE_AFTER_S)

    def expect_end(self, left_s: "Optional[float]") -> None:
        """Be killed well after that time, unless another is set before; None for never."""
        self._kill.set(0 if left_s is None else max(1, int(left_s)) + KILL_AFTER_S)


class _Timer:
    """Sends this process a signal. Made when it is first set, and not inherited by children."""

    def __init__(self, number: int) -> None:
        self._number = int(number)
        self._id: "Any" = pointer_type()(0) if sys.platform.startswith("linux") else None
        self._is_made = False

    def set(self, after_s: int, every_s: int = 0) -> None:
        """Start anew; 0 stops it."""
        if self._id is None or not (self._is_made or after_s):
            return
        try:
            if not self._is_made:
                self._make()
            when = struct.pack("llll", every_s, 0, after_s, 0)
            libc_function("timer_settime", _OLDER)(self._id, 0, when, None)
        except (ImportError, OSError, AttributeError):  # no such call here: the job runs all the same
            self._id = None

    def _make(self) -> None:
        import _ctypes

        event = struct.pack("Pii", 0, self._number, _BY_SIGNAL).ljust(_EVENT_BYTES, b"\0")
        if libc_function("timer_create", _OLDER)(_CLOCK_MONOTONIC, event, _ctypes.byref(self._id)) != 0:
            raise OSError("no timer")
        self._is_made = True
