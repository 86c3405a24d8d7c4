"""For how long a job may do nothing."""

from __future__ import annotations

import pytest

from clusterfn.bridge.supervisor import limits


@pytest.mark.parametrize(
    ("does", "over_at"),
    [
        ({}, 10),
        ({4: "prints"}, 14),
        ({4: "computes"}, 14),
        ({4: "prints", 12: "computes"}, 22),
    ],
)
def test_a_job_is_idle_from_when_it_printed_or_computed_last(
    monkeypatch: pytest.MonkeyPatch, does: dict[int, str], over_at: int
):
    now, used_s, printed = 1000.0, 5.0, 0
    monkeypatch.setattr(limits.clock, "now", lambda: now)
    monkeypatch.setattr(limits, "cpu_s", lambda pid: used_s)
    stall = limits.Stall(10.0)
    stall.over([1], 0.0, printed)

    for second in range(1, over_at + 1):
        now += 1
        printed += does.get(second) == "prints"
        used_s += does.get(second) == "computes"
        assert stall.over([1], 0.0, printed) == (second == over_at)
