"""`python -m benchmarks [ROWS…]`: measure, print, and write one report: benchmarks/results/<date>-<commit>.md.

ROWS are names of `ROWS`; without any, all are measured, in an hour. `python -m benchmarks peers` compares 1, 10 and
1,000 calls with those of others alone, `peers 100` so many.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from benchmarks import calls, costs, helpers, round_trips, transfers
from benchmarks.peers import measure as peers
from benchmarks.place import Place, made
from benchmarks.report import Row, reason_of, table, write

ROWS = ("latency", "round-trips", "transfers", "containers")


def main(wanted: Sequence[str]) -> None:
    """Measure the rows that are wanted, and write them."""
    if unknown := [word for word in wanted if word not in ROWS]:
        sys.exit(f"ROWS={' '.join(unknown)!r} names no rows: use {', '.join(ROWS)}")
    began, texts = time.monotonic(), []
    with made() as place:
        for _ in range(2):  # the bridge and its byte code
            place.until_first_line(place.script("first.py", "bare" if place.lab else "here"))
        for name in wanted or ROWS:
            for title, measure in _sections(place, name).items():
                try:
                    found = measure()
                except Exception as failed:  # an hour of other rows must not be lost
                    found = f"Not measured: {reason_of(failed)}"
                texts.append(f"## {title}\n\n{found if isinstance(found, str) else table(found)}\n")
                print(f"\n{texts[-1]}", flush=True)
    print(write(texts, time.monotonic() - began))


def _sections(place: Place, name: str) -> dict[str, Callable[[], list[Row] | str]]:
    """Return what some rows measure, by its title; what needs the lab is not measured without one."""
    lab = place.lab
    found: dict[str, dict[str, Callable[[], list[Row] | str]]] = {
        "latency": {
            "Import": lambda: costs.imports(place),
            "Calls and what they cannot do without": lambda: calls.bare(place, lab),
            "CPU of a job on its host": lambda: costs.on_host(place),
            "Output": lambda: costs.printing(place, lab),
            "Many calls": lambda: calls.at_once(place, lab),
            "Sessions": lambda: calls.sessions(place, lab),
            "Beside the function": lambda: costs.beside(place, lab),
            "Helpers for CUDA code": helpers.overhead,
        },
        "round-trips": {},
        "transfers": {},
        "containers": {},
    }
    if lab:
        found["latency"]["Round trips, 50 ms each"] = lambda: calls.round_trips(place)
        found["latency"]["A map on several hosts"] = lambda: calls.shared_map(place)
        found["latency"]["SLURM"] = lambda: calls.slurm(place, lab)
        found["containers"]["Containers"] = lambda: calls.containers(place)
        found["round-trips"]["Round trips"] = lambda: round_trips.table(lab)
        found["transfers"][transfers.TITLE] = lambda: transfers.table(place, lab)
    return found[name]


if sys.argv[1:2] == ["peers"]:
    peers.main(list(map(int, sys.argv[2:])) or peers.CALLS)
else:
    main(sys.argv[1:])
