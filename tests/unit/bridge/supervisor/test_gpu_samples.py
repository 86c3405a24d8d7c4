"""When the use of a job's GPUs is measured."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from clusterfn.bridge.supervisor import gpus


def test_a_job_is_looked_at_every_second_at_first_and_then_every_five(monkeypatch: pytest.MonkeyPatch):
    now, asked = [100.0], []
    monkeypatch.setattr(gpus, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(gpus, "hung_programs", [])
    monkeypatch.setattr(gpus.GpuUsageMonitor, "ask", lambda self: asked.append(now[0] - 100.0))
    monitor = gpus.GpuUsageMonitor(["GPU-1"], [])

    for _ in range(40):
        now[0] += 0.5
        monitor.look()

    assert asked == [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0]
