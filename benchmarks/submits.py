"""Many submits: calls in a loop from one program, on a new root and on a used one, and on slow hosts.

`python -m benchmarks.submits bare 20000 2400` submits so many calls. After so many seconds, it cancels those that have
not ended. `slurm` does the same on a SLURM of its own.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import Series
from benchmarks.report import Row
from tests.e2e.many_submits import Submitted, many_submits
from tests.fakes.growth import grow
from tests.fakes.slurm_hosts import slurm_hosts
from tests.lab.handle import Lab

COUNTS = (1, 10, 100, 1_000)
IN_MEMORY = 20_000  # of a host in memory: two cores would need hours for as many processes
_ALIASES = {"SSH": "py36-bash", "SLURM": "slurm-bash", "Grid Engine": "gridengine-bash"}
_SLOW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "agent stopped for 30 s": ({}, {"count": 100, "stopped_s": 30.0}),
    "150 ms away": ({"one_way_s": 0.075}, {"count": 100}),
    "1 MB/s": ({"bytes_per_s": 1e6}, {"count": 100}),
    "a disk that syncs in 2 s, SLURM": ({"alias": "slurm-bash", "sync_s": 2.0}, {"count": 60}),
    "20 programs, of each": ({}, {"count": 20, "programs": 20}),
}
_LATE_S, _AGENT_MB, _FORKS, _REQUESTS = 5, 40, 3, 9


def many(lab: Lab, fewest: float, most: float) -> list[Row]:
    """So many calls on each scheduler, first on a new root."""
    rows = []
    counts = [count for count in COUNTS if fewest <= count <= most]
    for title, alias in _ALIASES.items():
        with tempfile.TemporaryDirectory() as folder, many_submits(lab, Path(folder), alias) as host:
            new = f"{counts[-1]:,} calls over {title}, new root"
            rows += _rows(new, host.submit(counts[-1]), many_of_them=counts[-1] >= 100)
            for count in counts:
                what = f"{count:,} {'calls' if count > 1 else 'call'} over {title}"
                rows += _rows(what, host.submit(count), many_of_them=count >= 100)
    return rows


def slow(lab: Lab) -> list[Row]:
    """A new root on hosts that are slow, or far away."""
    rows = []
    for what, (place, calls) in _SLOW.items():
        with tempfile.TemporaryDirectory() as folder, many_submits(lab, Path(folder), **place) as host:
            title = f"{calls['count']} calls, new root, {what}"
            late_s = _LATE_S + 2 * place.get("sync_s", 0.0)
            rows += _rows(title, host.submit(**calls), late_s=late_s)
    return rows


def in_memory() -> list[Row]:
    """The largest count, from a real client to a host in memory that answers at once."""
    rows = []
    for scheduler in ("slurm", "bare"):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as changed:
            changed.setenv("XDG_STATE_HOME", folder)
            with slurm_hosts(changed, Path(folder), 1, first=1000 + len(rows), scheduler=scheduler) as world:
                found = grow(world, IN_MEMORY, measures_memory=False)
        what = f"{IN_MEMORY:,} calls to a host in memory ({scheduler}), each"
        rows += [
            Row(f"{what}: requests", Series((found.messages,)), "x", limit=_REQUESTS),
            Row(f"{what}: resident memory of client and host", Series((found.resident_kb,)), "KB"),
            Row(f"{what}: CPU to submit it", Series((found.submit_ms / 1e3,))),
        ]
    return rows


def _rows(what: str, took: Submitted, late_s: float | None = _LATE_S, many_of_them: bool = True) -> list[Row]:
    """One row for each thing; few calls have large shares in the connection, about which nothing is promised."""
    values = (
        ("all results", took.took_s, "s", None), ("known after its end", took.late_s, "s", late_s),
        ("agent's memory", took.agent_mb, "MB", _AGENT_MB), ("client's memory", took.client_mb, "MB", None),
        ("forks of the agent, each", took.forks, "x", _FORKS), ("requests, each", took.requests, "x", _REQUESTS),
        ("sent, each", took.up_kb, "KB", None),
    )  # fmt: skip
    return [
        Row(f"{what}: {name}", Series((value,)), unit, limit=limit if "each" not in name or many_of_them else None)
        for name, value, unit, limit in values
    ]


def _main(scheduler: str, count: str, most_s: str) -> None:
    lab = Lab()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"MaxJobCount": 50_000, "SelectTypeParameters": "CR_Core"}
        site = stack.enter_context(lab.own_slurm(settings, nodes=1)) if scheduler == "slurm" else None
        host = stack.enter_context(many_submits(lab, folder, site=site))
        print(f"{count} calls, {scheduler}: {host.submit(int(count), most_s=float(most_s))}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
