"""What a turn of the spooler costs in a short queue and in a long one.

`python -m benchmarks.long_queue` prints CPU seconds of one turn, of one look at all tickets, and of the list of waiting
jobs. No job runs: each ticket asks for more cores than there are.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from clusterfn.bridge.queue import launch, lease, machine, report
from clusterfn.bridge.queue.spooler import Spooler
from clusterfn.bridge.queue.tickets import Queue

COUNTS = (100, 20_000)


def write_tickets(root: Path, count: int) -> Queue:
    """Let so many jobs wait, each with a folder and a ticket."""
    queue, now = Queue(str(root)), machine.now_ns()
    asked = machine.Demand(0, 100_000, 0)._asdict()
    limits = dict.fromkeys(machine.UserLimits._fields)
    for number in range(count):
        home = root / "jobs" / f"{number:016x}"
        home.mkdir(parents=True)
        queue.write({
            "format": 1, "job": home.name, "name": "train", "folder": str(home), "home": str(home), "element": None,
            "submitted": now + number, "t": time.time(), "reason": "", "asked": asked, "limits": limits,
            "resources": {"gpu_type": None}, "priority": 0, "queue_timeout_s": None,
            "bridge": str(root), "needs": [], "after": None, "env": dict(os.environ),
        })  # fmt: skip
    return queue


def measure(count: int) -> str:
    """Describe the costs of a queue of so many."""
    with tempfile.TemporaryDirectory() as folder:
        queue = write_tickets(Path(folder), count)
        elected = lease.Leases().hold(launch.spool_name(queue))
        assert elected is not None
        spooler = Spooler(queue, os.dup(elected.fileno()))
        spooler._turn()  # reads each file
        spooler._front.complete_from = 0.0
        complete, turn = cpu_s(spooler._turn), min(cpu_s(spooler._turn) for _ in range(5))
        listed = cpu_s(lambda: report.waiting_jobs(folder))
        one_by_one = cpu_s(lambda: [report.reason_of(folder, job) for job in queue.names()])
        elected.close()
    return (
        f"{count:6,} tickets: a turn {turn:.4f} s, at all tickets {complete:.3f} s, "
        f"list of waiting jobs {listed:.3f} s, the reason of each {one_by_one:.3f} s"
    )


def cpu_s(work: Callable[[], object]) -> float:
    """Measure the CPU time of one call, in seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    print("\n".join(map(measure, map(int, sys.argv[1:]) if sys.argv[1:] else COUNTS)))
