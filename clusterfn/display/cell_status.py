"""The lines of clusterfn below a notebook cell: one grey output that is updated in place.

Sentences stay; the last line is replaced while a call or a map runs. Only the last `_SHOWN` sentences are unfolded.
"""

from __future__ import annotations

import functools
import html
import sys
import time
import uuid
from typing import Any, Optional

from clusterfn.bridge.supervisor.text import shortened

# JupyterLab and VS Code define these colours for their light and dark themes.
GREY = "var(--jp-ui-font-color2, var(--vscode-descriptionForeground, #808080))"
FONT = "var(--jp-code-font-family, var(--vscode-editor-font-family, monospace))"
_SHOWN = 5
# A line that is only replaced changes no more often than this.
_EVERY_S = 0.1
_WIDTH = 400
_FAILED = "#d9534f"
# How many calls have ended, of how many, and how many have failed.
Progress = Optional[tuple[int, ...]]


class CellStatus:
    """The lines below one cell; the output appears with the first of them."""

    def __init__(self) -> None:
        self._said: list[tuple[str, Progress]] = []
        self._line = ""
        self._progress: Progress = None
        self._unfinished = ""
        self._display_id = ""
        self._due = 0.0

    def say(self, text: str) -> None:
        """Add sentences, each ended by a newline; a newline alone keeps the line that would be replaced."""
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        if text == "\n" and self._line:
            self._said.append((self._line, self._progress))
            self._line, self._progress = "", None
        self._said += [(shortened(line, _WIDTH), None) for line in lines if line.strip()]
        self._publish()

    def redraw(self, line: str, progress: Progress = None) -> None:
        """Replace the last line; "" removes it. With `progress` a bar precedes the text."""
        line = shortened(line, _WIDTH)
        if (line, progress) != (self._line, self._progress):
            self._line, self._progress = line, progress
            # A front end takes time for each update, so a line that changes often is published only now and then.
            if not line or time.monotonic() >= self._due:
                self._publish()

    def _publish(self) -> None:
        from IPython.display import display, update_display

        self._due = time.monotonic() + _EVERY_S
        if self._display_id:
            update_display(self._bundle(), raw=True, display_id=self._display_id)
        elif self._said or self._line:
            self._display_id = f"clusterfn-{uuid.uuid4().hex}"
            display(self._bundle(), raw=True, display_id=self._display_id)

    def _bundle(self) -> dict[str, str]:
        lines = [*self._said, *([(self._line, self._progress)] if self._line else [])]
        return {"text/plain": "\n".join(line for line, _ in lines), "text/html": _html(lines)}


def _html(lines: list[tuple[str, Progress]]) -> str:
    bars = [f"{progress_bar(*progress)} " if progress is not None else "" for _, progress in lines]
    rows = [f"<div>{bar}{html.escape(line)}</div>" for bar, (line, _) in zip(bars, lines)]
    folded, shown = "".join(rows[:-_SHOWN]), "".join(rows[-_SHOWN:])
    if folded:
        count = len(rows) - _SHOWN
        folded = f"<details><summary>{count} earlier line{'s' if count > 1 else ''}</summary>{folded}</details>"
    style = f"color: {GREY}; font-family: {FONT}; font-size: 90%; line-height: 1.4; white-space: pre-wrap"
    return f'<div style="{style}">{folded}{shown}</div>'


def progress_bar(ended: int, total: int, failed: int = 0) -> str:
    """Return a bar, as HTML; a red one if some have failed."""
    color = f"; accent-color: {_FAILED}" if failed else ""
    return f'<progress value="{ended}" max="{total}" style="width: 16em; vertical-align: middle{color}"></progress>'


def of_present_cell() -> CellStatus:
    """Return the lines below the cell that runs; below the latest one where none does."""
    shell: Any = sys.modules["IPython"].get_ipython()
    # Threads print below the cell that runs, so the number of the cell decides, and not who asks.
    return _status_of(shell, shell.execution_count)


@functools.lru_cache(maxsize=1)
def _status_of(shell: Any, cell: int) -> CellStatus:
    return CellStatus()
