"""What grows with the number of jobs and hosts: messages, memory and CPU of one client, whose hosts are in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from benchmarks.measure import Series
from benchmarks.report import Row
from tests.fakes.growth import grow
from tests.fakes.slurm_hosts import slurm_hosts

SIZES = ((1, 100), (10, 1_000), (100, 10_000))
_MOST_MESSAGES, _MOST_KB = 8, 21


def many_jobs(sizes: tuple[tuple[int, int], ...] = SIZES) -> list[Row]:
    """So many hosts and jobs: what each job takes."""
    rows = []
    for hosts, jobs in sizes:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as changed:
            changed.setenv("XDG_STATE_HOME", folder)
            with slurm_hosts(changed, Path(folder), hosts) as world:
                found = grow(world, jobs, measures_memory=jobs <= 1_000)
        what = f"{jobs:,} jobs on {hosts} {'hosts' if hosts > 1 else 'host'}, each"
        rows.append(Row(f"{what}: messages", Series((found.messages,)), "x", limit=_MOST_MESSAGES))
        if found.kb:  # tracing takes longer than all else, so that no time of it would mean anything
            rows.append(Row(f"{what}: memory while it waits", Series((found.kb,)), "KB", limit=_MOST_KB))
        else:
            with_hosts = f"{what}: resident memory while it waits, with that of the hosts in memory"
            rows.append(Row(with_hosts, Series((found.resident_kb,)), "KB"))
            rows.append(Row(f"{what}: CPU to submit it", Series((found.submit_ms / 1e3,))))
            rows.append(Row(f"{what}: CPU at its end", Series((found.end_ms / 1e3,))))
    return rows
