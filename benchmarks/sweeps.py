"""What was measured at several sizes, as data: from 1 to 10,000 calls, and from 1 MB to 4 GB. Measures nothing.

A sweep is a file in benchmarks/results, `sweep-<date>-<commit>.json`: when, where, and its points. The charts and
tables of the documentation show the newest points of each kind; docs/pictures/draw_benchmarks.py draws them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import RESULTS, unused

OURS, PEER, LIMIT = "ours", "peer", "limit"


@dataclass(frozen=True)
class Point:
    """One thing at one size.

    Attributes:
        chart: Which chart it is in: a key of `CHARTS`.
        who: In words, "submitit".
        kind: OURS, PEER, or LIMIT for what no program can beat.
        size: How many calls, or how many MB.
        median, low, high: Of its samples: ms for each call, or seconds for all MB.
        samples: How many.
        alike: Whether it gives what we give, such as a process for each call. Others promise less.
        note: What a reader has to know of it: "124 of 1000 calls in 45 s".
        process: What each call gets, as `Contender.process`; "" where nothing else is compared with it.
    """

    chart: str
    who: str
    kind: str
    size: float
    median: float
    low: float
    high: float
    samples: int = 1
    alike: bool = True
    note: str = ""
    process: str = ""


@dataclass(frozen=True)
class Sweep:
    """What one run has measured.

    Attributes:
        date: When it was written, "2026-11-26 08:15": of two runs on one day, the later one is shown.
        machine: In a line.
        missing: What was not measured, and why.
    """

    date: str
    commit: str
    machine: str
    points: tuple[Point, ...]
    missing: tuple[str, ...] = ()

    def of(self, chart: str) -> list[Point]:
        """Return the points of one chart, the smallest first."""
        return sorted((each for each in self.points if each.chart == chart), key=lambda each: each.size)


@dataclass(frozen=True)
class Chart:
    """What a chart shows.

    Attributes:
        size: What its horizontal axis counts, with the unit.
        value: What its vertical axis counts, with the unit.
    """

    title: str
    size: str
    value: str


CHARTS = {
    "calls on one machine": Chart("Calls that do nothing, on one machine", "calls", "ms for each call"),
    "calls on SLURM": Chart("Calls that do nothing, on SLURM", "calls", "ms for each call"),
    "argument": Chart("An argument over SSH, sent for the first time", "MB", "seconds"),
    "result": Chart("A result over SSH", "MB", "seconds"),
}


def save(sweep: Sweep, folder: Path = RESULTS) -> Path:
    """Write it; return the file."""
    day = sweep.date.partition(" ")[0]
    path = unused(folder / f"sweep-{day}-{sweep.commit}.json")
    told = {**asdict(sweep), "points": [asdict(each) for each in sweep.points]}
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> Sweep:
    """Read such a file."""
    told = json.loads(path.read_text(encoding="utf-8"))
    points = tuple(Point(**each) for each in told["points"])
    return Sweep(told["date"], told["commit"], told["machine"], points, tuple(told["missing"]))


def newest(chart: str, sweeps: Iterable[Sweep]) -> Sweep | None:
    """Return the newest sweep that has points of this chart."""
    return max((each for each in sweeps if each.of(chart)), key=lambda each: each.date, default=None)


def committed(folder: Path = RESULTS) -> list[Sweep]:
    """Return all that are in the folder of results."""
    return [load(path) for path in sorted(folder.glob("sweep-*.json"))]


def ours_at(points: Sequence[Point], other: Point) -> Point | None:
    """Return what a point is compared with: our slowest way at its size that gives each call the same, if any."""
    ours = [each for each in points if each.kind == OURS and each.size == other.size]
    alike = [each for each in ours if each.alike == other.alike]
    same = [each for each in alike if each.process == other.process]
    return max(same or alike or ours, key=lambda each: each.median, default=None)


def losses(points: Sequence[Point]) -> list[str]:
    """Say in a sentence each where others are faster than we are: those that give the same first."""
    found = []
    for each in sorted(points, key=lambda each: (not each.alike, each.who, each.size)):
        ours = ours_at(points, each)
        if each.kind == PEER and ours is not None and each.median < ours.median:
            promise = "" if each.alike else ", but reuses processes" if ours.alike else ", compared with actors"
            ratio = f"{ours.median / each.median:.3g} ×"
            found.append(f'"{each.who}" is {ratio} as fast at {with_unit(each)}{promise}')
    return found


def where_others_win(points: Sequence[Point]) -> str:
    """Return in Markdown which other tools are faster, as the report and the page show it."""
    found = losses(points)
    if not any(each.kind == PEER for each in points):
        return "No other tool was measured here."
    if not found:
        return "No other tool that was measured here is faster."
    return "\n".join(["Others that are faster:", "", *(f"- {each}." for each in found)])


HEADERS = ("size", "what", "median", "min–max", "times ours", "times the reference")


def rows(chart: str, points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Return the cells of each point for a table with `HEADERS`."""
    unit = {"seconds": "s"}.get(CHARTS[chart].value, "ms")
    made = []
    for each in points:
        ours = ours_at(points, each)
        limits = [one.median for one in points if one.kind == LIMIT and one.size == each.size]
        ratio = f"{each.median / ours.median:.2g} ×" if ours and each.kind != OURS else ""
        over = f"{each.median / limits[0]:.2g} ×" if limits and each.kind != LIMIT else ""
        spread = f"{number(each.low)}–{number(each.high)}" if each.samples > 1 else "one sample"
        who = each.who + ("" if each.alike else " (reused processes)") + (f": {each.note}" if each.note else "")
        made.append((with_unit(each), who, f"{number(each.median)} {unit}", spread, ratio, over))
    return made


def number(value: float) -> str:
    """Return a figure with as many digits as were measured: 0.16, 3.5, 37, 1200."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def with_unit(point: Point) -> str:
    """Return the size of a point with its unit: "10,000 calls", "200 MB"."""
    unit = CHARTS[point.chart].size
    return f"{shown(point.size)} {'call' if unit == 'calls' and point.size == 1 else unit}"


def shown(size: float) -> str:
    """Return a size as people write it: "10,000"."""
    return f"{size:,.0f}"


_WANTED = re.compile(r"(?P<name>[a-z-]+)(?::(?P<low>\d+)(?:-(?P<high>\d+))?)?")


def chosen(words: Sequence[str], names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Read which rows are wanted: "calls", "calls:100", "bytes:1-64"; all without any.

    Returns:
        By the name of the rows, the smallest and the largest size.

    Raises:
        ValueError: There are no such rows; the message names those that there are.

    Example:
        >>> chosen(["calls:1-100"], ["calls", "bytes"])
        {'calls': (1.0, 100.0)}
    """
    found: dict[str, tuple[float, float]] = {}
    for word in words:
        match = _WANTED.fullmatch(word)
        if match is None or match["name"] not in names:
            known = ", ".join(names)
            raise ValueError(f"ROWS={word!r} names no rows: use {known}, and for a part of one calls:1-100")
        low = float(match["low"] or 0)
        found[match["name"]] = low, float(match["high"] or match["low"] or "inf")
    return found or dict.fromkeys(names, (0.0, float("inf")))
