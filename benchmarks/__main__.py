"""`python -m benchmarks`: measure, print, and write benchmarks/results/<date>-<commit>.md.

`python -m benchmarks peers` measures what others need for the same instead.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks import calls, costs, environments, helpers, round_trips
from benchmarks.peers import measure as peers
from benchmarks.place import made
from benchmarks.report import Row, table, write


def main() -> None:
    """Everything, in some minutes."""
    began = time.monotonic()
    sections: list[tuple[str, list[Row]]] = []
    with made() as place:
        lab = place.lab
        place.until_first_line(place.script("first.py", "bare" if lab else "here"))  # the bridge and its byte code
        place.until_first_line(place.script("first.py", "bare" if lab else "here"))
        parts: dict[str, Callable[[], list[Row]]] = {
            "Import": lambda: costs.imports(place),
            "Calls and what they cannot do without": lambda: calls.bare(place, lab),
            "Output": lambda: costs.printing(place, lab),
            "Many calls": lambda: calls.at_once(place, lab),
            "Sessions": lambda: calls.sessions(place, lab),
            "Beside the function": lambda: costs.beside(place, lab),
            "Helpers for CUDA code": helpers.overhead,
        }
        if lab:
            parts["Round trips, 50 ms each"] = lambda: calls.round_trips(place)
            parts["SLURM"] = lambda: calls.slurm(place, lab)
            parts["Large buffers over SSH"] = lambda: costs.large(place, lab)
        for title, rows in parts.items():
            try:
                sections.append((title, rows()))
            except (RuntimeError, OSError, subprocess.SubprocessError) as failed:  # a test may break a host meanwhile
                print(f"\n{title}: not measured: {failed}", flush=True)
            else:
                print(f"\n{title}\n\n{table(sections[-1][1])}", flush=True)
        if lab:
            print(f"\n{round_trips.write(round_trips.table(lab))}")
            if environments.has_room():
                print(f"\n{environments.write(environments.table(lab))}")
            else:
                print(f"\nEnvironments: not measured: that takes {environments.NEEDED_BYTES // 10**9} GB of disk")
    print(f"\n{write(sections, time.monotonic() - began)}")


if sys.argv[1:2] == ["peers"]:
    peers.main(*map(int, sys.argv[2:3]))
else:
    main()
