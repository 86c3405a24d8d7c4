"""Draw call.svg: the path of a call from your machine to the process that runs the function, and back.

python docs/pictures/draw_call.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2430 }
.title { font-weight: 600 } .note { font-size: 12px; fill: #5b6472 }
.zone { fill: #f3f5f9; stroke: #c9d0db } .box { fill: #ffffff; stroke: #3f51b5 }
.line { stroke: #3f51b5; stroke-width: 2; fill: none } .back { stroke: #2e7d32; stroke-width: 2; fill: none }
.backtext { font-size: 12px; fill: #2e7d32 }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ef } .note { fill: #a8b0bf } .zone { fill: #232733; stroke: #454c5c }
.box { fill: #2d3342; stroke: #9fa8da } .line { stroke: #9fa8da } .back { stroke: #81c784 }
.backtext { fill: #81c784 } }
"""
# x, width, title, what it is
ZONES = [
    (10, 250, "Your machine", "Python 3.9 or newer"),
    (330, 230, "Host", "login node or GPU server"),
    (600, 350, "Where the job runs", "compute node, or the same server"),
]
# x, y, width, title, what it does
BOXES = [
    (30, 80, 210, "train(1e-3)", "your decorated function"),
    (30, 170, 210, "client", "packs, follows, interprets"),
    (350, 170, 190, "agent", "files, commands, streams"),
    (620, 80, 150, "job.sh", "modules, setup"),
    (620, 170, 150, "supervisor", "watches and judges"),
    (790, 170, 140, "worker", "your function"),
]
# from, to, words above
ARROWS = [
    ((135, 130), (135, 170), ""),
    ((240, 188), (350, 188), "one SSH stream"),
    ((540, 188), (620, 120), ""),
    ((695, 130), (695, 170), ""),
    ((770, 188), (790, 188), ""),
]


def draw() -> str:
    """Return the picture."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 310" role="img" aria-label="The path of a call">'
    ]
    parts += [f"<style>{STYLE}</style>", "<defs>"]
    for name, colour in (("to", "line"), ("from", "back")):
        parts.append(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path class="{colour}" d="M0 0 L7 4 L0 8"/></marker>'
        )
    parts.append("</defs>")
    for x, width, title, note in ZONES:
        parts.append(f'<rect class="zone" x="{x}" y="10" width="{width}" height="290" rx="10"/>')
        parts += [_text(x + 14, 34, "title", title), _text(x + 14, 54, "note", note)]
    for x, y, width, title, note in BOXES:
        parts.append(f'<rect class="box" x="{x}" y="{y}" width="{width}" height="50" rx="6"/>')
        parts += [_text(x + 12, y + 21, "title", title), _text(x + 12, y + 40, "note", note)]
    for (x1, y1), (x2, y2), words in ARROWS:
        parts.append(f'<path class="line" marker-end="url(#to)" d="M{x1} {y1} L{x2} {y2}"/>')
        parts.append(_text(x1 + 4, y1 - 10, "note", words))
    parts.append(_text(548, 146, "note", "sbatch"))
    parts.append('<path class="back" marker-end="url(#from)" d="M860 222 V262 H135 V222"/>')
    parts.append(_text(352, 100, "note", "its own Python, 3.6 or newer"))
    parts.append(_text(352, 254, "backtext", "live output, the value, or the exception"))
    parts.append(_text(620, 282, "note", "outcome.json: written once, on the host's disk"))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: int, y: int, kind: str, words: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>'


if __name__ == "__main__":
    Path(__file__).with_name("call.svg").write_text(draw(), encoding="utf-8")
