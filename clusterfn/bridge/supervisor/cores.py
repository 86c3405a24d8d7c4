"""Which CPUs the worker may use on a machine without a scheduler: as many as asked, other jobs' left alone if possible.

A CPU in use is marked by an abstract unix socket, seen by everybody on the machine and gone with its holder. Nothing
is refused: with too few free ones, jobs share.
"""

import _socket  # the C half alone: `socket` costs 4 ms to import
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class Cores:
    """The CPUs of one job, marked as in use until released.

    Attributes:
        chosen: Their numbers; None if the job may use all.
    """

    def __init__(self, wanted: int) -> None:
        self._held: "list[_socket.socket]" = []
        self.chosen = self._choose(wanted)

    def _choose(self, wanted: int) -> "Optional[set[int]]":
        if not hasattr(os, "sched_getaffinity"):  # not Linux
            return None
        allowed = sorted(os.sched_getaffinity(0))
        if wanted >= len(allowed):
            return None
        free: "list[int]" = []
        for cpu in allowed:
            if len(free) < wanted and self._take(cpu):
                free.append(cpu)
        shift = os.getpid() % len(allowed)
        others = [cpu for cpu in allowed[shift:] + allowed[:shift] if cpu not in free]
        return set((free + others)[:wanted])

    def release(self) -> None:
        """Take the marks away."""
        for mark in self._held:
            mark.close()

    def _take(self, cpu: int) -> bool:
        mark = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            mark.bind(b"\0clusterfn/cpu/%d" % cpu)
        except OSError:
            mark.close()
            return False
        self._held.append(mark)
        return True
