"""Record sessions in a terminal as terminal.json and top.json, and draw terminal.svg and top.svg from them.

The first one is a call, its live output, Ctrl-C and attach. The second one is `clusterfn top`.

    python docs/pictures/record_terminal.py                     # draw both from their recordings
    python docs/pictures/record_terminal.py record              # record on this machine, then draw
    python docs/pictures/record_terminal.py record ada@tensor01 # begin with `clusterfn init ada@tensor01 --yes`
    python docs/pictures/record_terminal.py top tensor01        # record top.json: `clusterfn top` with what runs there

Everything on the screen is what the commands have printed; only the pauses are shortened. Needs pyte (`[docs]`).
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

PICTURES = Path(__file__).parent
SIZES = {"terminal": (96, 22), "top": (118, 28)}  # columns and lines of each recording
TOP_S = 16.0
LINE_HEIGHT, COLUMN_WIDTH = 20, 8.4
LONGEST_PAUSE_S, LAST_S = 1.2, 4.0
SCRIPT = """import time
from clusterfn import cluster


@cluster(cores=1, memory="1GB")
def train(lr):
    for epoch in range(1, 13):
        print(f"epoch {epoch}  loss {lr * 100 / epoch:.3f}")
        time.sleep(1)
    return "weights of epoch 12"
"""
STYLE = """
rect { fill: #1e2127 } text { font: 14px ui-monospace, Menlo, Consolas, monospace; fill: #d7dae0; white-space: pre }
.prompt { fill: #98c379 } g { visibility: hidden }
@media (prefers-reduced-motion: reduce) { g { animation: none !important } g:last-of-type { visibility: visible } }
"""
Event = tuple[float, str]  # when, and what appears


def record(address: str | None) -> list[Event]:
    """Run the session in a new folder, and return what appeared when."""
    events: list[Event] = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if address:
            events += _run(["clusterfn", "init", address, "--yes"])
        Path("train.py").write_text(SCRIPT, encoding="utf-8")
        events += _run(["cat", "train.py"])
        called = _run(["clusterfn", "run", "train.py::train", "0.01"], interrupt_at="epoch 3")
        job = re.search(r"clusterfn result (\w+)", "".join(text for _, text in called))
        if not job:
            raise SystemExit("the call was not detached: " + "".join(text for _, text in called))
        events += called + _run(["clusterfn", "attach", job[1]]) + _run(["clusterfn", "result", job[1]])
        os.chdir("/")
    return events


def record_top(host: str) -> list[Event]:
    """Return what `clusterfn top` shows for some seconds of what runs on a host."""
    return _run(["clusterfn", "top", host], size=SIZES["top"], interrupt_after_s=TOP_S)


def _run(
    argv: list[str], interrupt_at: str = "", size: tuple[int, int] = SIZES["terminal"], interrupt_after_s: float = 0.0
) -> list[Event]:
    """Run a command in a terminal of its own; press Ctrl-C once that text has appeared, or after so long."""
    before = 0.0 if argv[0] == "cat" else 0.8
    events: list[Event] = [(before, f"\x1b[32m$\x1b[0m {' '.join(argv)}"), (0.6, "\r\n")]
    process, terminal = pty.fork()
    if process == 0:
        found = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
        shown = {"COLUMNS": str(size[0]), "LINES": str(size[1]), "TERM": "xterm-256color"}
        os.execvpe(argv[0], argv, {**os.environ, **shown, "PATH": found})
    seen, last = "", time.monotonic()
    began = last
    while chunk := _read(terminal):
        now = time.monotonic()
        events.append((round(now - last, 2), chunk))
        seen, last = seen + chunk, now
        is_late = 0 < interrupt_after_s < now - began
        if (interrupt_at and interrupt_at in seen) or is_late:
            os.write(terminal, b"\x03")
            interrupt_at, interrupt_after_s = "", 0.0
    os.close(terminal)
    os.waitpid(process, 0)
    return events


def _read(terminal: int) -> str:
    """What appears next; "" at the end."""
    try:
        select.select([terminal], [], [])
        return os.read(terminal, 65536).decode("utf-8", "replace")
    except OSError:  # Linux reports the end of a terminal so
        return ""


def screens(events: list[Event], size: tuple[int, int]) -> Iterator[tuple[float, list[str]]]:
    """Yield each different screen, and for how many seconds it is shown."""
    import pyte

    screen = pyte.Screen(*size)
    stream = pyte.Stream(screen)
    shown: list[str] = []
    seconds = 0.0
    for pause, text in events:
        seconds += min(pause, LONGEST_PAUSE_S)
        stream.feed(text)
        now = [line.rstrip() for line in screen.display]
        if now != shown and seconds > 0.05:
            if any(shown):
                yield seconds, shown
            shown, seconds = now, 0.0
    yield LAST_S, shown


def draw(events: list[Event], name: str = "terminal") -> str:
    """Return the recording of that name as an SVG that plays by itself, without a script."""
    columns, count = SIZES[name]
    frames = list(screens(events, (columns, count)))
    total = sum(seconds for seconds, _ in frames)
    width, height = round(columns * COLUMN_WIDTH + 24), count * LINE_HEIGHT + 24
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" aria-label="A terminal session">']
    rules, groups, start = [STYLE], [], 0.0
    for number, (seconds, lines) in enumerate(frames):
        begin, end = 100 * start / total, 100 * (start + seconds) / total
        rules.append(
            f"@keyframes f{number} {{ 0%, {begin:.2f}% {{ visibility: hidden }} {begin + 0.01:.2f}%, {end:.2f}% "
            f"{{ visibility: visible }} {min(end + 0.01, 100):.2f}%, 100% {{ visibility: hidden }} }}"
        )
        groups.append(f'<g style="animation: f{number} {total:.1f}s step-end infinite">')
        groups += [_line(row, text) for row, text in enumerate(lines) if text]
        groups.append("</g>")
        start += seconds
    parts += ["<style>", *rules, "</style>", f'<rect width="{width}" height="{height}" rx="8"/>', *groups, "</svg>", ""]
    return "\n".join(parts)


def _line(row: int, text: str) -> str:
    y = 12 + LINE_HEIGHT * row + 15
    if text.startswith("$ "):
        return f'<text x="12" y="{y}"><tspan class="prompt">$</tspan>{escape(text[1:])}</text>'
    return f'<text x="12" y="{y}">{escape(text)}</text>'


if __name__ == "__main__":
    words = sys.argv[1:]
    name = "top" if words[:1] == ["top"] else "terminal"
    path = PICTURES / f"{name}.json"
    if words:
        recorded = record_top(words[1]) if name == "top" else record(words[1] if len(words) > 1 else None)
        path.write_text(json.dumps(recorded, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    for each in [path] if words else [PICTURES / f"{name}.json" for name in SIZES]:
        given = [(float(pause), str(text)) for pause, text in json.loads(each.read_text(encoding="utf-8"))]
        each.with_suffix(".svg").write_text(draw(given, each.stem), encoding="utf-8")
