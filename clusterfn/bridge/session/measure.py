"""What one call of a session uses: the memory of its processes, and the session's cards while it runs.

A process that asks about the cards is a child of the session's, and none of the call's.
"""

from __future__ import annotations

import os
import time
from typing import Any

from ..supervisor import gauge, memory, tree
from .child import Child

_KIB = 1024  # what wait4 counts in


class Measure:
    """One call's use.

    Args:
        gpus: How many cards the session has.
        notes: Where it says what it could not measure.
    """

    def __init__(self, gpus: int, notes: list[str]) -> None:
        self._began = time.monotonic()
        self._sampler = memory.Sampler(None)
        self._gauge = gauge.Gauge(gauge.names_of(None, gpus, dict(os.environ)), notes)

    def look(self) -> None:
        """Take a sample, if it is time for one."""
        self._gauge.look()
        if self._sampler.due():
            began = time.process_time()
            self._sampler.over(processes(), began)

    def close(self) -> None:
        """Look no more."""
        self._gauge.close()

    def usage(self, child: Child, said_cpu_s: float | None, said_peak: int) -> dict[str, Any]:
        """As outcome.json has it.

        Args:
            child: The call's process.
            said_cpu_s: What it said itself of the time that it used.
            said_peak: And of its memory, in bytes; 0 if it came to no last word. Nobody else can tell while it exits.
        """
        ended = child.ended[1] if child.ended else None
        cpu_s = ended.ru_utime + ended.ru_stime if ended else 0.0
        largest = ended.ru_maxrss * _KIB if ended else said_peak or memory.peak_of(child.pid)
        return {
            "wall_s": round(time.monotonic() - self._began, 3),
            "cpu_s": round(cpu_s if said_cpu_s is None else said_cpu_s, 3),
            "peak_memory_bytes": max(self._sampler.peak, largest),
            "gpus": self._gauge.usage(),
        }


def processes() -> list[int]:
    """The processes of the call that runs."""
    return gauge.without_askers(tree.descendants(os.getpid()))
