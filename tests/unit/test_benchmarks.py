"""The charts and tables of measurements: from synthetic figures, and what the documentation shows of the real ones."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import charts
from benchmarks.report import reason_of
from benchmarks.sweeps import (
    CHARTS,
    HEADERS,
    LIMIT,
    OURS,
    PEER,
    Point,
    Sweep,
    chosen,
    committed,
    load,
    losses,
    newest,
    rows,
    save,
)
from tests.unit.test_pictures import PICTURES, script

ROOT = Path(__file__).parents[2]
CALLS = "calls on one machine"
NAMES = ("calls", "bytes", "growth")
SVG = "{http://www.w3.org/2000/svg}"


def points(who: str, kind: str, each_ms: float, alike: bool = True) -> list[Point]:
    return [
        Point(CALLS, who, kind, size, each_ms * 100 / size, each_ms * 90 / size, each_ms * 130 / size, 3, alike)
        for size in (1, 10, 100, 1_000, 10_000)
    ]


KNOWN = [
    *points("clusterfn", OURS, 40), *points("submitit <array>", PEER, 240), *points("pool", PEER, 20),
    *points("dask", PEER, 2, alike=False), *points("two interpreters", LIMIT, 30),
]  # fmt: skip


def drawn(some: list[Point]) -> ET.Element:
    return ET.fromstring(charts.draw(CHARTS[CALLS], some, "Measured on 2026-11-22 & elsewhere"))


def test_a_chart_has_a_line_for_each_tool_and_a_mark_for_each_point_and_its_spread() -> None:
    picture = drawn(KNOWN)

    marks = picture.findall(f"{SVG}circle")
    assert len(picture.findall(f"{SVG}polyline")) == 5
    assert len(marks) == 25
    spreads = [each for each in picture.findall(f"{SVG}line") if each.get("class", "").endswith("spread")]
    assert len(spreads) == 25
    assert any(each.text == "Measured on 2026-11-22 & elsewhere" for each in picture.findall(f"{SVG}text"))


def test_less_is_lower_and_larger_is_further_right_and_all_is_within_the_picture() -> None:
    picture = drawn(points("clusterfn", OURS, 40))
    places = [(float(each.get("cx", "")), float(each.get("cy", ""))) for each in picture.findall(f"{SVG}circle")]

    assert places == sorted(places, key=lambda each: each[0])
    assert [y for _, y in places] == sorted(y for _, y in places)  # y grows downwards, and each call costs less
    assert all(0 < x < charts.WIDTH and 0 < y < charts.HEIGHT for x, y in places)


def test_a_chart_can_be_read_in_the_dark_and_tells_tools_that_reuse_processes() -> None:
    text = charts.draw(CHARTS[CALLS], KNOWN, "")

    assert "prefers-color-scheme: dark" in text
    assert "dask *" in text and "submitit &lt;array&gt; " in text
    assert 'class="limit line"' in text


@pytest.mark.parametrize("some", [[], [replace(KNOWN[0], median=0.0)]])
def test_figures_that_no_axis_can_show_are_an_error_and_no_empty_picture(some: list[Point]) -> None:
    with pytest.raises(ValueError, match="Calls that do nothing"):
        charts.draw(CHARTS[CALLS], some, "")


def test_a_single_point_is_drawn_too() -> None:
    assert len(drawn(KNOWN[:1]).findall(f"{SVG}circle")) == 1


def test_a_table_has_the_ratio_to_ours_and_to_the_limit_and_the_spread() -> None:
    found = rows(CALLS, [each for each in KNOWN if each.size == 100])

    assert len(HEADERS) == len(found[0])
    assert found[0] == ("100 calls", "clusterfn", "40 ms", "36–52", "", "1.3 ×")
    assert ("100 calls", "submitit <array>", "240 ms", "216–312", "6 ×", "8 ×") in found
    assert ("100 calls", "dask (reused processes)", "2.0 ms", "1.8–2.6", "0.05 ×", "0.067 ×") in found


def test_what_others_do_better_is_said_and_those_that_give_the_same_come_first() -> None:
    found = losses([each for each in KNOWN if each.size == 100])

    assert found == ['"pool" is 2 × as fast at 100 calls', '"dask" is 20 × as fast at 100 calls, but reuses processes']


def test_tools_that_reuse_processes_are_compared_with_ours_that_do() -> None:
    known = [*KNOWN, *points("actors", OURS, 4, alike=False)]
    some = [each for each in known if each.size == 100]

    assert losses(some)[1:] == ['"dask" is 2 × as fast at 100 calls, compared with actors']
    assert ("100 calls", "dask (reused processes)", "2.0 ms", "1.8–2.6", "0.5 ×", "0.067 ×") in rows(CALLS, some)
    lines = [each.get("class", "") for each in drawn(known).findall(f"{SVG}polyline")]
    assert [each for each in lines if each.startswith("c0")] == ["c0 line", "c0 line way1"]


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


def test_a_program_that_failed_is_reported_with_the_last_line_that_it_said() -> None:
    failed = subprocess.CalledProcessError(255, "ssh", stderr=b"first\nConnection refused\n")

    assert reason_of(failed).endswith("returned non-zero exit status 255.: Connection refused")
    assert reason_of(AssertionError("too late")) == "AssertionError: too late"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], dict.fromkeys(NAMES, (0.0, float("inf")))),
        (["growth"], {"growth": (0.0, float("inf"))}),
        (["calls:1-100", "bytes:64"], {"calls": (1.0, 100.0), "bytes": (64.0, 64.0)}),
    ],
)
def test_a_part_of_the_rows_can_be_measured(words: list[str], wanted: dict[str, tuple[float, float]]) -> None:
    assert chosen(words, NAMES) == wanted


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
