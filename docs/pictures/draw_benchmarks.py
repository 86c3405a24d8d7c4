"""Draw the charts of docs/explanation/benchmarks.md, and write its tables, from the newest results that are committed.

PYTHONPATH=. python docs/pictures/draw_benchmarks.py
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import charts
from benchmarks.report import aligned
from benchmarks.sweeps import CHARTS, HEADERS, Sweep, committed, newest, rows, where_others_win

PICTURES = Path(__file__).parent
PAGE = PICTURES.parent / "explanation" / "benchmarks.md"
BEGIN, END = "<!-- figures: written by docs/pictures/draw_benchmarks.py -->", "<!-- end of figures -->"


def file_of(chart: str) -> str:
    """Return the name of a chart's picture."""
    return f"bench-{chart.replace(' ', '-')}.svg"


def measured() -> dict[str, Sweep]:
    """Return the newest results of each chart that has any."""
    known = committed()
    found = {chart: newest(chart, known) for chart in CHARTS}
    return {chart: sweep for chart, sweep in found.items() if sweep is not None}


def picture(chart: str, sweep: Sweep) -> str:
    """Return the picture of one chart."""
    source = f"Measured on {sweep.date}, commit {sweep.commit}. * reuses processes. Lines through points: the spread."
    return charts.draw(CHARTS[chart], sweep.of(chart), source)


def section(chart: str, sweep: Sweep) -> str:
    """Return what the page says of one chart."""
    points = sweep.of(chart)
    parts = [
        f"### {CHARTS[chart].title}",
        f"![{CHARTS[chart].title}: {CHARTS[chart].value}](../pictures/{file_of(chart)})",
        f"Measured on {sweep.date}, commit {sweep.commit}:\n\n    {sweep.machine.replace('; ', chr(10) + '    ')}",
        aligned(HEADERS, rows(chart, points)),
        where_others_win(points),
    ]
    return "\n\n".join(parts)


def page() -> str:
    """Return the page with its figures."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    figures = "\n\n".join(section(chart, sweep) for chart, sweep in measured().items())
    return f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}"


def main() -> None:
    """Write the pictures and the page."""
    for chart, sweep in measured().items():
        (PICTURES / file_of(chart)).write_text(picture(chart, sweep), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
