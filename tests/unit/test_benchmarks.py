"""The charts and tables of measurements in the documentation show the newest figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sweeps import CHARTS, committed, newest
from tests.unit.test_pictures import PICTURES, script

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform == "win32", reason="the benchmarks need Unix")
def test_make_bench_rejects_unknown_rows_before_it_measures_anything() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "cals"], cwd=ROOT, capture_output=True, text=True, timeout=150
    )

    assert ran.returncode == 1
    assert "ROWS='cals' names no rows: use latency, calls, bytes" in ran.stderr


@pytest.mark.parametrize("chart", [each for each in CHARTS if newest(each, committed())])
def test_the_charts_of_the_documentation_show_the_newest_results(chart: str) -> None:
    draws = script("draw_benchmarks")
    picture = (PICTURES / draws.file_of(chart)).read_text(encoding="utf-8")

    assert picture == draws.picture(chart, draws.measured()[chart])


def test_the_page_of_benchmarks_has_the_newest_figures_with_date_and_machine() -> None:
    draws = script("draw_benchmarks")
    text = draws.PAGE.read_text(encoding="utf-8")

    assert text == draws.page()
    for sweep in draws.measured().values():
        assert f"Measured on {sweep.date}, commit {sweep.commit}" in text
        assert sweep.machine.partition(";")[0] in text
