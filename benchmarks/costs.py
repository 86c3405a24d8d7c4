"""What it costs beside time on the path: the import, printing, large buffers, memory, and what runs on the host."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from benchmarks import limits
from benchmarks.measure import Series, in_turns, seconds
from benchmarks.place import MINOR, Place
from benchmarks.report import Row
from tests.lab.handle import Lab

_PEAK_OF = "size of the buffer, above a call without one"


def imports(place: Place) -> list[Row]:
    """The import of clusterfn in a fresh process: alone, which loads nothing, and with the decorator."""
    programs = {
        "nothing": "pass", "clusterfn": "import clusterfn", "cluster": "from clusterfn import cluster",
        "paramiko": "import paramiko",
    }  # fmt: skip
    parts = {
        name: lambda text=text: seconds(lambda: place.run([sys.executable, "-c", text]))
        for name, text in programs.items()
    }
    taken = in_turns(parts, 15)
    return [
        Row("python -c pass", taken["nothing"]),
        Row("python -c 'import clusterfn'", taken["clusterfn"], limit=60),
        Row.versus("python -c 'import clusterfn'", taken["clusterfn"], taken["nothing"], "python -c pass", limit=2.2),
        Row.versus("'from clusterfn import cluster'", taken["cluster"], taken["nothing"], "python -c pass"),
        Row("python -c 'import paramiko'", taken["paramiko"]),
    ]  # fmt: skip


def printing(place: Place, lab: Lab | None) -> list[Row]:
    """From a print on the host to the line here."""
    host = "bare" if lab else "here"
    delays = json.loads(place.run(place.script("prints.py", host)).stdout)
    return [Row(f"print there, seen here ({len(delays)} lines)", Series(tuple(delays)), limit=5)]


def beside(place: Place, lab: Lab | None) -> list[Row]:
    """What runs on the host beside the function."""
    told = json.loads(place.run(place.script("costs.py", "bare" if lab else "here")).stdout)
    sleeps = "agent's CPU in an hour with a job that sleeps, after its first 40 s"
    return [
        Row("agent's memory (RSS)", Series((told["agent_mb"],)), "MB", limit=25),
        Row("agent's CPU in an hour without a job", Series((told["agent_idle_s"],)), "s", limit=5),
        Row(sleeps, Series((told["agent_job_s"],)), "s", limit=5),
        Row("supervisor's CPU while the function sleeps", Series((told["idle_percent"],)), "%", limit=0.3),
        Row("supervisor's CPU while the function computes", Series((told["busy_percent"],)), "%", limit=0.3),
    ]


def large(place: Place, lab: Lab) -> list[Row]:
    """Large arrays over SSH: time, and the peak memory of this process."""
    rows = [Row("200 MB by ssh aes128-gcm into a synced file", in_turns({"": limits.large_up(lab, 200)}, 2)[""], "s")]
    base = _told(place, "none", 0)["peak_mb"]
    for way, size in (("up", 60), ("up", 200), ("down", 200)):
        told = [_told(place, way, size) for _ in range(2)]
        first, second = (Series(tuple(each["seconds"][number] for each in told)) for number in (0, 1))
        if way == "up":
            rows += [Row(f"{size} MB argument, first time", first, "s"), Row(f"{size} MB argument, again", second, "s")]
        else:
            rows.append(Row(f"{size} MB result", Series(first.values + second.values), "s"))
        peak = Series(tuple(each["peak_mb"] for each in told))
        ratio = (peak.median - base) / size
        rows.append(Row(f"client's peak memory, {size} MB {way}", peak, "MB", _PEAK_OF, ratio))
    return rows


def _told(place: Place, way: str, size: int) -> dict[str, Any]:
    """What large.py says; with arrays where an environment of the lab has numpy, which is then lent to this one."""
    ran = with_arrays(place).run(place.script("large.py", "arrays" if place.arrays else "bare", way, str(size)))
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


def with_arrays(place: Place) -> Place:
    """The same place with numpy for this machine's processes, where an environment of the lab has it."""
    if not place.arrays:
        return place
    packages = place.arrays.parents[1] / "lib" / f"python{MINOR}" / "site-packages"
    return replace(place, env={**place.env, "PYTHONPATH": str(packages)})
