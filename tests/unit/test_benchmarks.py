"""The charts and tables of measurements: from synthetic figures, and what the documentation shows of the real ones."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.sweeps import CHARTS, LIMIT, OURS, PEER, Point, Sweep, chosen, committed, load, newest, save
from tests.unit.test_pictures import PICTURES, script

ROOT = Path(__file__).parents[2]
CALLS = "calls on one machine"
NAMES = ("calls", "bytes", "growth")


def points(who: str, kind: str, each_ms: float, alike: bool = True) -> list[Point]:
    return [
        Point(CALLS, who, kind, size, each_ms * 100 / size, each_ms * 90 / size, each_ms * 130 / size, 3, alike)
        for size in (1, 10, 100, 1_000, 10_000)
    ]


KNOWN = [
    *points("clusterfn", OURS, 40), *points("submitit <array>", PEER, 240), *points("pool", PEER, 20),
    *points("dask", PEER, 2, alike=False), *points("two interpreters", LIMIT, 30),
]  # fmt: skip


def test_the_newest_results_of_each_chart_are_taken_and_read_as_they_were_written(tmp_path: Path) -> None:
    old = Sweep("2026-11-20", "aaaaaaa", "two cores", tuple(KNOWN))
    older = Sweep("2026-11-22 08:15", "aaaaaaa", "two cores", tuple(KNOWN[:3]))
    later = Sweep("2026-11-22 19:05", "bbbbbbb", "two cores", tuple(KNOWN[:5]), ("4096 MB: needs 13 GB of memory",))
    other = Sweep("2026-11-23 07:00", "ccccccc", "two cores", (replace(KNOWN[0], chart="result"),))
    all_four = (old, older, later, other)

    assert [load(save(each, tmp_path)) for each in all_four] == list(all_four)
    assert newest(CALLS, committed(tmp_path)) == later
    assert newest("argument", committed(tmp_path)) is None


def test_a_second_run_of_a_day_keeps_the_files_of_the_first(tmp_path: Path) -> None:
    first = Sweep("2026-11-22 08:15", "aaaaaaa", "two cores", tuple(KNOWN[:3]))

    paths = [save(replace(first, date=f"2026-11-22 {hour}:15"), tmp_path) for hour in ("08", "09", "10")]

    assert [path.name for path in paths] == [f"sweep-2026-11-22-aaaaaaa{more}.json" for more in ("", "-2", "-3")]
    assert load(paths[0]) == first


@pytest.mark.parametrize("word", ["cals", "calls:", "calls:a-b", "bytes:1MB"])
def test_unknown_rows_are_rejected_with_those_that_there_are(word: str) -> None:
    with pytest.raises(ValueError, match=r"names no rows: use calls, bytes, growth"):
        chosen([word], NAMES)


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
