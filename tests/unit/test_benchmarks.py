"""The measurements reject what they do not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform == "win32", reason="the benchmarks need Unix")
def test_make_bench_rejects_unknown_rows_before_it_measures_anything() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "cals"], cwd=ROOT, capture_output=True, text=True, timeout=150
    )

    assert ran.returncode == 1
    assert "ROWS='cals' names no rows: use latency, round-trips, transfers" in ran.stderr
