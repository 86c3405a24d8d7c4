"""The whole comparison, in a quarter of an hour."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from benchmarks.peers import report
from benchmarks.peers.contenders import CONTENDERS, Contender
from benchmarks.peers.passes import NotMeasured, taken
from benchmarks.place import Place, made

CALLS = (1, 10, 1000)


def main(counts: Sequence[int] = CALLS) -> None:
    """Measure one after the other, print, and write benchmarks/results/peers-<date>-<commit>.md."""
    began, before = time.monotonic(), os.getloadavg()[0]
    at_once = os.cpu_count() or 1
    measured: dict[int, dict[Contender, report.Outcome]] = {}
    with made() as place:
        for calls in counts:
            at_a_time = min(at_once, calls)
            measured[calls] = {each: _outcome(each, place, calls, at_a_time) for each in CONTENDERS}
    print("\n\n".join(report.sections(measured)))
    loads = f"Load before it began: {before:.1f}."
    print(f"\n{report.write(measured, at_once, loads, time.monotonic() - began)}")


def _outcome(contender: Contender, place: Place, calls: int, at_once: int) -> report.Outcome:
    try:
        passes = taken(contender, place, calls, at_once)
    except (NotMeasured, OSError, subprocess.SubprocessError) as failed:
        print(f"{contender.where}: {contender.name}: {failed}", flush=True)
        return str(failed)
    print(f"{contender.where}: {contender.name}: {passes[-1].done} calls in {passes[-1].seconds:.3g} s", flush=True)
    return passes
