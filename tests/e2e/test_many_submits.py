"""Many calls submitted in a loop: every result arrives soon after its end, and what it costs both sides is bounded.

The hosts are the lab's, each with a new root. The largest counts are those of `tests/unit/calls/test_many_jobs.py`,
whose hosts are in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.layout import layout_bridge
from tests.e2e.many_submits import Submitted, many_submits

pytestmark = pytest.mark.lab

AGENT_MB, FORKS, REQUESTS = 40, 3, 9  # of the agent; of each call
LATE_S = 5.0  # from the end of a call on the host until the client knows of it


UP_KB = 20  # of each call, in addition to its share in the bridge, which each program sends at most once


@pytest.fixture
def bridge_kb(tmp_path: Path) -> float:
    """The size of the bridge."""
    files = layout_bridge(tmp_path / "bridge").rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file()) / 1024


def check(took: Submitted, count: int, bridge_kb: float) -> None:
    """Check what so many calls of a program took."""
    assert took.agent_mb <= AGENT_MB, took
    assert took.forks <= FORKS, took
    assert took.requests <= REQUESTS, took
    assert took.up_kb <= UP_KB + bridge_kb / count, took


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("alias", "count"), [("py36-bash", 1000), ("slurm-bash", 1000), ("gridengine-bash", 300)])
def test_many_calls_on_a_new_and_on_a_used_root(
    lab: Any, tmp_path: Path, alias: str, count: int, table: Callable[[str], None], bridge_kb: float
) -> None:
    with many_submits(lab, tmp_path, alias) as host:
        for root in ("new", "used"):
            took = host.submit(count)
            table(f"{count} calls on {alias}, {root} root: {took}")
            check(took, count, bridge_kb)
            assert took.late_s <= LATE_S, took


SLOW = {
    "its agent stopped for 30 s": ({}, {"count": 150, "stopped_s": 30.0}),
    "150 ms away": ({"one_way_s": 0.075}, {"count": 150}),
    "1 MB/s": ({"bytes_per_s": 1e6}, {"count": 150}),
    "a disk that syncs in 2 s": ({"alias": "slurm-bash", "sync_s": 2.0}, {"count": 60}),
    "20 programs": ({}, {"count": 25, "programs": 20}),
}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", SLOW)
def test_many_calls_on_a_slow_host(
    lab: Any, tmp_path: Path, how: str, table: Callable[[str], None], bridge_kb: float
) -> None:
    place, calls = SLOW[how]
    with many_submits(lab, tmp_path, **place) as host:
        took = host.submit(**calls)
    table(f"{calls['count']} calls, {how}: {took}")
    check(took, calls["count"], bridge_kb)
    assert took.late_s <= LATE_S + 2 * place.get("sync_s", 0.0), took
