"""What a supervisor costs while its function runs: it wakes up a few times a second, and soon once it must."""

from __future__ import annotations

import time
from pathlib import Path

from tests.bridge.host import Bench
from tests.bridge.layout import layout_bridge
from tests.waiting import until

SLEEPS = "def f(go):\n    import os, time\n    while not os.path.exists(go):\n        time.sleep(0.5)\n"
GROWS = """def f(go):
    import os, time
    held = b"x" * (240 << 20)
    while not os.path.exists(go):
        time.sleep(0.5)
    held = held, b"x" * (80 << 20)
    time.sleep(600)
"""
WATCHED_S = 4.0


def wakes(pid: int, seconds: float) -> int:
    """How often a process has slept in that time: a busy machine makes it no more."""

    def slept() -> int:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))

    before = slept()
    time.sleep(seconds)
    return slept() - before


def test_a_function_that_waits_is_looked_at_two_or_three_times_a_second(bench: Bench, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = bench.job(SLEEPS, str(go))
    script = job.start()
    job.wait_for("running")
    pid = job.supervisor_pid()

    until(lambda: wakes(pid, WATCHED_S) <= 5 * WATCHED_S)
    go.touch()
    script.wait(150)

    assert job.outcome()["kind"] == "returned"


def test_a_function_near_its_memory_limit_is_looked_at_often_and_ended(bench: Bench, tmp_path: Path) -> None:
    line, looks = "        used = sum(resident_bytes(pid) for pid in pids)", tmp_path / "looks"
    counts = f"{line}\n        open({str(looks)!r}, 'a').write('x')"
    bench.bridge = layout_bridge(tmp_path / "counting", ("supervisor/limits.py", line, counts))
    job = bench.job(GROWS, str(tmp_path / "go"), resources={"memory_bytes": 300 << 20})
    script = job.start()
    job.wait_for_memory(240 << 20)

    def is_often() -> bool:
        before = looks.stat().st_size
        time.sleep(WATCHED_S)
        return looks.stat().st_size - before > 3 * WATCHED_S

    until(is_often)
    (tmp_path / "go").touch()
    script.wait(150)

    outcome = job.outcome()
    assert outcome["kind"] == "memory"
    assert outcome["usage"]["peak_memory_bytes"] < 400 << 20
