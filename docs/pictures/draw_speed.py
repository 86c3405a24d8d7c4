"""Draw speed.svg: the milliseconds of a call that does nothing, from the table of docs/explanation/speed.md.

python docs/pictures/draw_speed.py
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "explanation" / "speed.md"
TOOLS = ("clusterfn", "executorlib", "submitit")
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2430 } .title { font-weight: 600 }
.note { font-size: 12px; fill: #5b6472 }
.ours { fill: #3f51b5 } .others { fill: #aab2c0 }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ef } .note { fill: #a8b0bf } .ours { fill: #9fa8da } .others { fill: #5b6472 } }
"""


def figures() -> dict[str, tuple[float, float]]:
    """Return the milliseconds of each tool that starts a process for each call: on one machine, and on SLURM."""
    page = PAGE.read_text(encoding="utf-8")
    row = r"^\| %s\b[^|]*\| [\d.]+ \| ([\d.]+) \| [\d.,]+ \| ([\d.]+) \|$"
    found = {name: re.search(row % name, page, re.MULTILINE) for name in TOOLS}
    return {name: (float(cells[1]), float(cells[2])) for name, cells in found.items() if cells}


def draw() -> str:
    """Return the picture."""
    known = figures()
    longest = max(max(pair) for pair in known.values())
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 280" aria-label="Milliseconds per call">',
        f"<style>{STYLE}</style>",
        '<text class="title" x="10" y="24">Milliseconds per call, for a thousand empty calls, two at a time</text>',
    ]
    y = 44
    for column, place in enumerate(("on one machine", "on SLURM")):
        parts.append(f'<text class="note" x="10" y="{y + 12}">{place}</text>')
        y += 22
        for name, pair in known.items():
            width = round(520 * pair[column] / longest)
            parts.append(f'<text x="20" y="{y + 17}">{name}</text>')
            parts.append(
                f'<rect class="{"ours" if name == "clusterfn" else "others"}" x="120" y="{y + 2}" '
                f'width="{width}" height="20" rx="3"/>'
            )
            parts.append(f'<text x="{128 + width}" y="{y + 17}">{pair[column]:g} ms</text>')
            y += 27
        y += 6
    parts.append(
        f'<text class="note" x="10" y="{y + 10}">A thousand calls, two at a time, two cores. Less is better.</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("speed.svg").write_text(draw(), encoding="utf-8")
