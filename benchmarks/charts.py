"""Charts as SVG, without a library: lines over logarithmic axes, with the spread of each point; for light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from benchmarks.sweeps import LIMIT, OURS, Chart, Point, number, shown

WIDTH, HEIGHT = 860, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 330, 48, 64
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2430 } .title { font-weight: 600; font-size: 14px }
.note, .tick { font-size: 11px; fill: #5b6472 } .grid { stroke: #d9dee6 }
.line { fill: none; stroke-width: 2 } .spread { stroke-width: 1 }
.c0 { stroke: #3f51b5; fill: #3f51b5; stroke-width: 3 } .limit { stroke: #5b6472; fill: #5b6472; stroke-dasharray: 5 4 }
.c1 { stroke: #c2571a; fill: #c2571a } .c2 { stroke: #1f7a4d; fill: #1f7a4d } .c3 { stroke: #8e3a8e; fill: #8e3a8e }
.c4 { stroke: #a07000; fill: #a07000 } .c5 { stroke: #1b7f9c; fill: #1b7f9c } .c6 { stroke: #b03060; fill: #b03060 }
.c7 { stroke: #5d6b1e; fill: #5d6b1e } .c8 { stroke: #7a4a2b; fill: #7a4a2b }
.line { fill: none } .less { stroke-dasharray: 2 3 }
.way1 { stroke-dasharray: 9 3 } .way2 { stroke-dasharray: 9 3 2 3 } .way3 { stroke-dasharray: 2 3 }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ef } .note, .tick { fill: #a8b0bf } .grid { stroke: #39404d }
.c0 { stroke: #9fa8da; fill: #9fa8da } .limit { stroke: #a8b0bf; fill: #a8b0bf }
.c1 { stroke: #ffab7a; fill: #ffab7a } .c2 { stroke: #7fd6a8; fill: #7fd6a8 } .c3 { stroke: #e0a0e0; fill: #e0a0e0 }
.c4 { stroke: #e8c468; fill: #e8c468 } .c5 { stroke: #80cfe6; fill: #80cfe6 } .c6 { stroke: #f28cb0; fill: #f28cb0 }
.c7 { stroke: #c3d977; fill: #c3d977 } .c8 { stroke: #d9b08c; fill: #d9b08c }
.line { fill: none } }
"""
_COLOURS = 8


class _Axis:
    """A logarithmic axis from `low` to `high`, drawn between two places."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.low = 10.0 ** math.floor(math.log10(min(values)))
        self.high = 10.0 ** math.ceil(math.log10(max(values)) + 1e-9)
        if self.high <= self.low:
            self.high = self.low * 10
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        part = math.log10(value / self.low) / math.log10(self.high / self.low)
        return round(self._begin + part * (self._end - self._begin), 1)

    def ticks(self) -> list[float]:
        decades = round(math.log10(self.high / self.low))
        return [self.low * 10.0**number for number in range(decades + 1)]


def draw(chart: Chart, points: Sequence[Point], source: str) -> str:
    """Return the chart as SVG.

    Args:
        points: Those of this chart; at least one.
        source: When and where they were measured, for the last line.

    Raises:
        ValueError: There is no point, or one that a logarithmic axis cannot show.
    """
    shown_points = [each for each in points if min(each.size, each.low, each.median, each.high) > 0]
    if not points or len(shown_points) < len(points):
        raise ValueError(f"{chart.title}: {len(points) - len(shown_points) or 'no'} points, of which none is above 0")
    across = _Axis([each.size for each in points], _LEFT, WIDTH - _RIGHT)
    up = _Axis([value for each in points for value in (each.low, each.high)], HEIGHT - _BOTTOM, _TOP)
    label = f"{chart.title}: {chart.value}, by {chart.size}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="10" y="20">{escape(chart.title)}</text>',
        f'<text class="note" x="10" y="38">{escape(chart.value)}; less is better; both axes are logarithmic</text>',
    ]
    parts += _grid(across, up)
    parts.append(f'<text class="tick" x="{WIDTH - _RIGHT + 8}" y="{HEIGHT - _BOTTOM + 16}">{escape(chart.size)}</text>')
    for row, (who, line) in enumerate(_lines(points).items()):
        parts += _line(who, line, row, across, up)
    parts.append(f'<text class="note" x="10" y="{HEIGHT - 10}">{escape(source)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _lines(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Return the points of each line by its name: ours first, the limit last, the slowest of the others first."""
    found: dict[str, list[Point]] = {}
    order = {OURS: 0, LIMIT: 2}
    for each in sorted(points, key=lambda each: (order.get(each.kind, 1), each.kind != OURS and -each.median)):
        found.setdefault(each.who, []).append(each)
    return {who: sorted(line, key=lambda each: each.size) for who, line in found.items()}


def _grid(across: _Axis, up: _Axis) -> list[str]:
    parts = []
    for tick in across.ticks():
        x = across.at(tick)
        parts.append(f'<line class="grid" x1="{x}" y1="{_TOP}" x2="{x}" y2="{HEIGHT - _BOTTOM}"/>')
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{x}" y="{HEIGHT - _BOTTOM + 16}">{shown(tick)}</text>'
        )
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{WIDTH - _RIGHT}" y2="{y}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{_LEFT - 6}" y="{y + 4}">{number(tick)}</text>')
    return parts


def _line(who: str, line: Sequence[Point], row: int, across: _Axis, up: _Axis) -> list[str]:
    """Draw one line with its spread, and its name in the legend."""
    first, last = line[0], line[-1]
    css = "limit" if first.kind == LIMIT else "c0" if first.kind == OURS else f"c{1 + row % _COLOURS}"
    less = f" way{row}" if first.kind == OURS and row else "" if first.alike else " less"
    places = " ".join(f"{across.at(each.size)},{up.at(each.median)}" for each in line)
    parts = [f'<polyline class="{css} line{less}" points="{places}"/>'] if len(line) > 1 else []
    for each in line:
        x = across.at(each.size)
        if each.high > each.low:
            parts.append(
                f'<line class="{css} spread" x1="{x}" y1="{up.at(each.low)}" x2="{x}" y2="{up.at(each.high)}"/>'
            )
        parts.append(
            f'<circle class="{css}" cx="{x}" cy="{up.at(each.median)}" r="3.5">'
            f"<title>{escape(who)}, {shown(each.size)}: {number(each.median)}</title></circle>"
        )
    y, x = _TOP + 8 + 18 * row, WIDTH - _RIGHT + 24
    words = who if len(who) <= 30 else who[:29] + "…"
    promise = "" if first.alike else " *"
    parts.append(f'<line class="{css}{less}" x1="{x}" y1="{y - 4}" x2="{x + 18}" y2="{y - 4}"/>')
    parts.append(f'<text x="{x + 24}" y="{y}">{escape(words)}{promise} {number(last.median)}</text>')
    return parts
