"""`python -m benchmarks [ROWS…]`: measure, print, and write one report: benchmarks/results/<date>-<commit>.md.

ROWS are names of `ROWS`; `calls:1-100` and `bytes:1-64` are parts of such. Without any, all are measured, in hours.
`python -m benchmarks peers` compares 1, 10 and 1,000 calls with those of others alone, `peers 100` so many.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import calls, costs, environments, growth, helpers, round_trips, submits, sweep_rows, transfers
from benchmarks.peers import measure as peers
from benchmarks.place import Place, made
from benchmarks.report import Row, aligned, commit, machine, reason_of, table, write
from benchmarks.sweeps import CHARTS, HEADERS, Point, Sweep, chosen, rows, save, where_others_win
from tests.lab.handle import Lab

ROWS = ("latency", "calls", "bytes", "growth", "submits", "round-trips", "transfers", "environments")
_DRAWS = Path(__file__).parents[1] / "docs" / "pictures" / "draw_benchmarks.py"


def main(words: Sequence[str]) -> None:
    """Measure the rows that are wanted, and write them."""
    try:
        wanted, began = chosen(words, ROWS), time.monotonic()
    except ValueError as wrong:
        sys.exit(str(wrong))
    sections: list[tuple[str, list[Row]]] = []
    points: list[Point] = []
    missing: list[str] = []
    with made() as place:
        host = "bare" if place.lab else "here"
        for _ in range(2):  # the bridge and its byte code
            place.until_first_line(place.script("first.py", host))
        for title, measure in _sections(place, wanted).items():
            try:
                sections.append((title, measure()))
            except Exception as failed:  # hours of other rows must not be lost
                missing.append(f"{title}: {reason_of(failed)}")
            else:
                print(f"\n{title}\n\n{table(sections[-1][1])}", flush=True)
        if "calls" in wanted:
            _add(points, missing, lambda: sweep_rows.calls(place, wanted["calls"]))
        lab = place.lab
        if lab and "bytes" in wanted:
            _add(points, missing, lambda: sweep_rows.sizes(place, lab, wanted["bytes"]))
        texts: list[str] = []
        for title, table_of in (_tables(place, lab, wanted) if lab else {}).items():
            try:
                texts.append(f"## {title}\n\n{table_of()}")
            except Exception as failed:
                missing.append(f"{title}: {reason_of(failed)}")
            else:
                print(f"\n{texts[-1]}", flush=True)
    now = datetime.datetime.now().isoformat(" ", "minutes")
    sweep = Sweep(now, commit(), machine(), tuple(points), tuple(missing))
    print(f"\n{write(sections, time.monotonic() - began, [*texts, *_parts(sweep)])}")
    if points:
        print(save(sweep))
        subprocess.run([sys.executable, str(_DRAWS)], check=True, cwd=_DRAWS.parents[2], env=_with_root())


def _sections(place: Place, wanted: dict[str, tuple[float, float]]) -> dict[str, Callable[[], list[Row]]]:
    lab = place.lab
    latency: dict[str, Callable[[], list[Row]]] = {
        "Import": lambda: costs.imports(place),
        "Calls and what they cannot do without": lambda: calls.bare(place, lab),
        "CPU of a job on its host": lambda: costs.on_host(place),
        "Output": lambda: costs.printing(place, lab),
        "Many calls": lambda: calls.at_once(place, lab),
        "Sessions": lambda: calls.sessions(place, lab),
        "Helpers for CUDA code": helpers.overhead,
    }
    if lab:
        latency["Round trips, 50 ms each"] = lambda: calls.round_trips(place)
        latency["SLURM"] = lambda: calls.slurm(place, lab)
        latency["Large buffers over SSH"] = lambda: costs.large(place, lab)
    beside: dict[str, Callable[[], list[Row]]] = {
        "Beside the function": lambda: costs.beside(place, lab),
        "One client, many jobs": growth.many_jobs,
    }
    loops: dict[str, Callable[[], list[Row]]] = {}
    if lab and "submits" in wanted:
        loops["Many submits"] = lambda: submits.many(lab, *wanted["submits"])
        loops["Many submits on slow hosts"] = lambda: submits.slow(lab)
    loops["Many submits to a host in memory"] = submits.in_memory
    parts = {"latency": latency, "growth": beside, "submits": loops}
    return {title: measure for name, part in parts.items() if name in wanted for title, measure in part.items()}


def _tables(place: Place, lab: Lab, wanted: dict[str, tuple[float, float]]) -> dict[str, Callable[[], str]]:
    found: dict[str, Callable[[], str]] = {}
    if "round-trips" in wanted:
        found["Round trips"] = lambda: round_trips.table(lab)
    if "transfers" in wanted:
        found[transfers.TITLE] = lambda: transfers.table(place, lab)
    if "environments" in wanted:
        found["Environments"] = lambda: environments.table(lab)
    return found


def _add(points: list[Point], missing: list[str], measure: Callable[[], tuple[list[Point], list[str]]]) -> None:
    try:
        found, lacking = measure()
    except Exception as failed:  # hours of other rows must not be lost
        missing.append(reason_of(failed))
    else:
        points += found
        missing += lacking


def _parts(sweep: Sweep) -> list[str]:
    """Return the charts of a sweep as sections of the report, with what others do better, and what is missing."""
    parts = []
    for chart, about in CHARTS.items():
        of_chart = sweep.of(chart)
        if of_chart:
            shown = aligned(HEADERS, rows(chart, of_chart))
            parts.append("\n\n".join([f"## {about.title}", shown, where_others_win(of_chart)]))
    if sweep.missing:
        parts.append("\n".join(["## Not measured\n", *(f"- {each}" for each in sweep.missing)]))
    return parts


def _with_root() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(_DRAWS.parents[2])}


if sys.argv[1:2] == ["peers"]:
    peers.main(list(map(int, sys.argv[2:])) or peers.CALLS)
else:
    main(sys.argv[1:])
