"""Many submits: calls in a loop from one program, on a new root and on a used one, and on slow hosts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Series
from benchmarks.report import Row
from tests.e2e.many_submits import Submitted, many_submits
from tests.lab.handle import Lab

COUNTS = (1, 10, 100, 300)
_ALIASES = {"SSH": "py36-bash", "SLURM": "slurm-bash", "Grid Engine": "gridengine-bash"}
_SLOW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "agent stopped for 30 s": ({}, {"count": 100, "stopped_s": 30.0}),
    "150 ms away": ({"one_way_s": 0.075}, {"count": 100}),
    "1 MB/s": ({"bytes_per_s": 1e6}, {"count": 100}),
    "a disk that syncs in 2 s, SLURM": ({"alias": "slurm-bash", "sync_s": 2.0}, {"count": 60}),
    "20 programs, of each": ({}, {"count": 20, "programs": 20}),
}
_LATE_S, _AGENT_MB, _FORKS, _REQUESTS = 5, 40, 3, 9


def many(lab: Lab) -> list[Row]:
    """So many calls on each scheduler, first on a new root."""
    rows = []
    for title, alias in _ALIASES.items():
        with tempfile.TemporaryDirectory() as folder, many_submits(lab, Path(folder), alias) as host:
            rows += _rows(f"{COUNTS[-1]} calls over {title}, new root", host.submit(COUNTS[-1]))
            for count in COUNTS:
                what = f"{count} {'calls' if count > 1 else 'call'} over {title}"
                rows += _rows(what, host.submit(count), many_of_them=count >= 100)
    return rows


def slow(lab: Lab) -> list[Row]:
    """A new root on hosts that are slow, or far away."""
    rows = []
    for what, (place, calls) in _SLOW.items():
        with tempfile.TemporaryDirectory() as folder, many_submits(lab, Path(folder), **place) as host:
            title = f"{calls['count']} calls, new root, {what}"
            rows += _rows(title, host.submit(**calls), late_s=_LATE_S + 2 * place.get("sync_s", 0.0))
    return rows


def _rows(what: str, took: Submitted, late_s: float = _LATE_S, many_of_them: bool = True) -> list[Row]:
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
