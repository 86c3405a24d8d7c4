"""Measures the points of the charts: from 1 to 10,000 calls by everybody, and from 1 MB to 4 GB over SSH."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence

from benchmarks import limits
from benchmarks.costs import with_arrays
from benchmarks.measure import Series, in_turns
from benchmarks.peers.contenders import CONTENDERS, MACHINE, Contender
from benchmarks.peers.passes import LIMIT_S, NotMeasured, Pass, taken
from benchmarks.place import Place
from benchmarks.sweeps import LIMIT, OURS, PEER, Point
from tests.lab.handle import Lab

CALLS = (1, 10, 100, 1_000, 10_000)
MEGABYTES = (1, 16, 64, 256, 1_024, 4_096)
Range = tuple[float, float]
_ROOM = 3  # times the array: here, on the host's disk, and in the function


def within(sizes: Sequence[int], wanted: Range) -> list[int]:
    """Return those of the sizes that are wanted."""
    return [size for size in sizes if wanted[0] <= size <= wanted[1]]


def calls(place: Place, wanted: Range) -> tuple[list[Point], list[str]]:
    """Measure so many calls at a time by everybody; return the points, and what was not measured, and why."""
    at_once = os.cpu_count() or 1
    points, missing = _least(place, wanted, at_once), []
    for contender in CONTENDERS:
        for count in within(CALLS, wanted):
            try:
                passes = taken(contender, place, count, min(at_once, count))
            except (NotMeasured, OSError, subprocess.SubprocessError) as failed:
                missing.append(f"{contender.name}, {contender.where}, {count} calls: {failed}")
                break  # more calls would not do better
            points.append(point_of(contender, count, passes))
            print(f"{contender.where}, {contender.name}, {count} calls: {points[-1].median:.3g} ms each", flush=True)
    return points, missing


def point_of(contender: Contender, count: int, passes: Sequence[Pass]) -> Point:
    """Return the point of one contender's passes."""
    each = [one.each_s * 1e3 for one in passes]
    done = min(one.done for one in passes)
    return Point(
        f"calls on {'one machine' if contender.where == MACHINE else 'SLURM'}", contender.name,
        PEER if contender.peer else OURS, count, statistics.median(each), min(each), max(each), len(each),
        contender.is_fresh, "" if done >= count else f"{done} of {count} calls in {LIMIT_S:.0f} s",
    )  # fmt: skip


def _least(place: Place, wanted: Range, at_once: int) -> list[Point]:
    """The time of the two interpreters that a call with a process of its own needs, on as many cores as there are."""
    parts = limits.interpreters(place)
    times = in_turns({name: parts[name] for name in ("supervisor", "worker")}, 5)
    both = times["supervisor"] + times["worker"]
    points = []
    for count in within(CALLS, wanted):
        each = [value * 1e3 / min(at_once, count) for value in both.values]
        spread = (statistics.median(each), min(each), max(each), len(each))
        points.append(Point("calls on one machine", "start of two interpreters", LIMIT, count, *spread))
    return points


def sizes(place: Place, lab: Lab, wanted: Range) -> tuple[list[Point], list[str]]:
    """Measure arrays of so many MB over SSH, both ways, against ssh alone."""
    points, missing = [], []
    for megabytes in within(MEGABYTES, wanted):
        why = lacks_room(megabytes, place)
        if why:
            missing.append(f"{megabytes} MB: {why}")
            continue
        rounds = 3 if megabytes <= 256 else 2
        ways: dict[str, Callable[[], list[float]]] = {
            "argument": lambda size=megabytes: _first(place, "up", size),  # type: ignore[misc]
            "result": lambda size=megabytes: _first(place, "down", size),  # type: ignore[misc]
        }
        for chart, sample in ways.items():
            values = [value for _ in range(rounds) for value in sample()]
            points.append(_point(chart, "clusterfn", OURS, megabytes, Series(tuple(values))))
        ssh = {"argument": limits.large_up(lab, megabytes), "result": limits.large_down(lab, megabytes)}
        for chart, series in in_turns(ssh, rounds).items():
            points.append(_point(chart, "ssh aes128-gcm", LIMIT, megabytes, series))
        print(f"{megabytes} MB: measured", flush=True)
    return points, missing


def _point(chart: str, who: str, kind: str, megabytes: int, series: Series) -> Point:
    return Point(chart, who, kind, megabytes, series.median, series.low, series.high, len(series.values))


def _first(place: Place, way: str, megabytes: int) -> list[float]:
    """Seconds of a new process: an array that was sent before is not sent again, and a result always comes."""
    told = json.loads(with_arrays(place).run(place.script("large.py", "arrays" if place.arrays else "bare", way,
                                                          str(megabytes), "new")).stdout)  # fmt: skip
    seconds: list[float] = told["seconds"]
    return seconds[:1] if way == "up" else seconds


def lacks_room(megabytes: int, place: Place) -> str:
    """Return why an array of that size cannot be measured on this machine; "" if it can."""
    needed = _ROOM * megabytes * 2**20
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    disk = shutil.disk_usage(place.root.parent).free
    for what, there in (("memory", memory), ("disk", disk)):
        if there < needed:
            return f"needs {needed / 1e9:.0f} GB of {what}, and {there / 1e9:.0f} are free"
    return ""
