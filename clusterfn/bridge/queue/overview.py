"""One look after another at what runs here, for `clusterfn top`: own jobs, and without a scheduler those of all users.

`supervise.py top ROOT NODES SECONDS LOOKS` prints them as lines of JSON, until its input ends. For each look after the
first one it reads a byte: a client whose terminal is stopped asks for none.
NODES is 1 on the login node of a cluster, else empty. A look measures nothing that a supervisor has measured already.
It comes later where it would take too much of a core.
"""

import json
import os
import select
import sys
import time

from ..job_states import DIED, FINAL
from ..supervisor import listing
from ..supervisor.job import job_folders
from ..supervisor.process_tree import read_proc
from ..supervisor.publish import write_all
from ..supervisor.text import portable
from . import machine, report
from .lease import Leases

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The share of a core for looks.
_MOST_OF_A_CORE = 0.01
_GPUS_EVERY_S = 5.0
_ENDED = frozenset(FINAL.values()) | {DIED}


def print_looks(root: str, has_nodes: bool, every_s: float, looks: int) -> int:
    """Print so many looks, or until the input ends.

    Args:
        has_nodes: Whether jobs run elsewhere, by a scheduler.
        looks: 0 for no end.
    """
    overview = Overview(root, has_nodes)
    count = 0
    while True:
        began = time.process_time()
        write_all(sys.stdout.fileno(), json.dumps(portable(overview.look())).encode() + b"\n")
        count += 1
        # The first look reads all jobs, also those that have ended long ago.
        cost_s = time.process_time() - began if count > 1 else 0.0
        if count == looks or not _asks_again(max(every_s, cost_s / _MOST_OF_A_CORE)):
            return 0


def _asks_again(pause_s: float) -> bool:
    """Wait for so long at least, and until the client has taken the look and asks for one more; False at its end."""
    until = time.monotonic() + pause_s
    if not os.read(0, 1):
        return False
    rest_s = max(0.0, until - time.monotonic())
    return not (select.select([0], [], [], rest_s)[0] and not os.read(0, 1))


class Overview:
    """What is seen below one root, and on the machine."""

    def __init__(self, root: str, has_nodes: bool) -> None:
        self._root = root
        self._has_nodes = has_nodes
        self._ended: "set[str]" = set()
        self._gpus: "dict[str, Any]" = {}
        self._next_gpus = 0.0

    def look(self) -> "dict[str, Any]":
        """Return one look."""
        own = self._own_jobs()
        if self._has_nodes:
            return {"t": time.time(), "own": own}
        names = Leases().binders()
        now_s = machine.now_s()
        facts = {
            "t": time.time(),
            "own": own,
            "jobs": report.look_at_jobs(names, now_s),
        }
        return dict(facts, machine=_machine(), **self._look_at_gpus())

    def _own_jobs(self) -> "list[dict[str, Any]]":
        jobs = []
        for folder in job_folders(self._root):
            if folder not in self._ended:
                job = listing.describe(folder)
                if job["state"] in _ENDED:
                    self._ended.add(folder)
                else:
                    jobs.append(job)
        return jobs

    def _look_at_gpus(self) -> "dict[str, Any]":
        if time.monotonic() >= self._next_gpus:
            self._gpus = report.look_at_gpus(self._root)
            self._next_gpus = time.monotonic() + _GPUS_EVERY_S
        return self._gpus


def _machine() -> "dict[str, Any]":
    """Return how busy the machine is; None for what it does not say."""
    rows = (line.split() for line in read_proc("meminfo").splitlines())
    memory = {row[0]: int(row[1]) * 1024 for row in rows if row and row[0] in (b"MemTotal:", b"MemAvailable:")}
    total, free = memory.get(b"MemTotal:"), memory.get(b"MemAvailable:")
    used = None if total is None or free is None else total - free
    return {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "memory_bytes": total, "used_bytes": used}
