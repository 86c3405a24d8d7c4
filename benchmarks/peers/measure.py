"""The whole comparison, in less than ten minutes."""

from __future__ import annotations

import os
import subprocess
import time

from benchmarks.peers import report
from benchmarks.peers.contenders import CONTENDERS, MACHINE, SLURM, Contender
from benchmarks.peers.passes import NotMeasured, taken
from benchmarks.place import Place, made

CALLS = 1000


def main(calls: int = CALLS) -> None:
    """Measure one after the other, print, and write benchmarks/results/peers-<date>-<commit>.md."""
    began, before = time.monotonic(), os.getloadavg()[0]
    at_once = os.cpu_count() or 1
    outcomes: dict[Contender, report.Outcome] = {}
    with made() as place:
        for contender in CONTENDERS:
            outcomes[contender] = _outcome(contender, place, calls, at_once)
    for where in (MACHINE, SLURM):
        print(f"\n{where}\n\n{report.table(where, outcomes)}")
    loads = f"Load before it began: {before:.1f}."
    print(f"\n{report.write(outcomes, calls, at_once, loads, time.monotonic() - began)}")


def _outcome(contender: Contender, place: Place, calls: int, at_once: int) -> report.Outcome:
    try:
        passes = taken(contender, place, calls, at_once)
    except (NotMeasured, OSError, subprocess.SubprocessError) as failed:
        print(f"{contender.where}: {contender.name}: {failed}", flush=True)
        return str(failed)
    print(f"{contender.where}: {contender.name}: {passes[-1].done} calls in {passes[-1].seconds:.1f} s", flush=True)
    return passes
