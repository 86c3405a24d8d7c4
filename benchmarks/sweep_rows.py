"""Measures the points of the charts: from 1 to 10,000 calls by everybody, and from 1 MB to 4 GB over SSH."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import limits, transfers
from benchmarks.measure import in_turns
from benchmarks.peers.contenders import CONTENDERS, MACHINE, Contender
from benchmarks.peers.passes import LIMIT_S, Pass, taken
from benchmarks.place import Place
from benchmarks.report import reason_of
from benchmarks.sweeps import LIMIT, OURS, PEER, Point
from tests.lab.handle import Lab

CALLS = (1, 10, 100, 1_000, 10_000)
MEGABYTES = (1, 16, 64, 256, 1_024, 4_096)
Range = tuple[float, float]
_COPIES = 3  # in memory: here, in the function, and as it is sent
_FILES = 6  # of each round, with one to spare: two on each side by ssh and by us, and what a result is landed in


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
            except Exception as failed:  # hours of other rows must not be lost
                missing.append(f"{contender.name}, {contender.where}, {count} calls: {reason_of(failed)}")
                break  # more calls would not do better
            points.append(point_of(contender, count, passes))
            print(f"{contender.where}, {contender.name}, {count} calls: {points[-1].median:.3g} ms each", flush=True)
            if passes[-1].done < count:
                break  # of more calls, as many would be done in the same time
    return points, missing


def point_of(contender: Contender, count: int, passes: Sequence[Pass]) -> Point:
    """Return the point of one contender's passes."""
    each = [one.each_s * 1e3 for one in passes]
    done = min(one.done for one in passes)
    return Point(
        f"calls on {'one machine' if contender.where == MACHINE else 'SLURM'}", contender.name,
        PEER if contender.peer else OURS, count, statistics.median(each), min(each), max(each), len(each),
        contender.is_fresh, "" if done >= count else f"{done} of {count} calls in {LIMIT_S:.0f} s",
        contender.process,
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
    """Measure buffers of so many MB over SSH, both ways, against ssh; its connection is open before, as ours is."""
    points: list[Point] = []
    missing: list[str] = []
    with transfers.behind(place, lab, 0, "paramiko") as there, transfers.connected(there) as held:
        for megabytes in within(MEGABYTES, wanted):
            rounds = 3 if megabytes <= 256 else 2
            why = lacks_room(megabytes, rounds, place)
            try:
                points += [] if why else _both_ways(there, held, megabytes, rounds)
            except Exception as failed:  # the other sizes must not be lost
                why = reason_of(failed)
            if why:
                missing.append(f"{megabytes} MB: {why}")
            print(f"{megabytes} MB: {why or 'measured'}", flush=True)
    return points, missing


_SSH = {
    "argument": "SSH 'ON_HOST && cat > NUMBER' < data",
    "result": "SSH 'ON_HOST && cat NUMBER' > back/NUMBER && sync back/NUMBER",
}


def _both_ways(there: Place, held: Place, megabytes: int, rounds: int) -> list[Point]:
    took: dict[tuple[str, str], list[float]] = {(chart, kind): [] for chart in _SSH for kind in (OURS, LIMIT)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        transfers.make_data(folder, megabytes)
        try:
            for number in range(rounds):
                mine = transfers.ours(there, megabytes, 0, name)
                for chart, command in _SSH.items():
                    took[chart, OURS].append(mine[chart])
                    took[chart, LIMIT].append(transfers.timed(held, folder, command.replace("NUMBER", str(number))))
                transfers.check_connected(held)
        finally:
            transfers.tidy(there, folder)
    who = {OURS: "clusterfn", LIMIT: "ssh aes128-gcm"}
    return [
        Point(chart, who[kind], kind, megabytes, statistics.median(each), min(each), max(each), len(each))
        for (chart, kind), each in took.items()
    ]


def lacks_room(megabytes: int, rounds: int, place: Place) -> str:
    """Return why a buffer of that size cannot be measured on this machine; "" if it can."""
    size = megabytes * 2**20
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    disk = shutil.disk_usage(place.root.parent).free
    for what, there, needed in (("memory", memory, _COPIES * size), ("disk", disk, (1 + _FILES * rounds) * size)):
        if there < needed:
            return f"needs {needed / 1e9:.0f} GB of {what}, and {there / 1e9:.0f} are free"
    return ""
