"""A bar on a terminal, drawn by tqdm, which is optional and imported when the first bar is drawn.

tqdm knows where other bars of the program are. What stands beside the bar is ours, so it is the same without tqdm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TextIO

_FORMAT = "{percentage:3.0f}%|{bar}| {desc}"


class ProgressBar:
    """One bar of tqdm: `bar` with `line` beside it."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def draw(self, line: str, done: int, total: int, columns: int) -> None:
        """Redraw it in so many columns."""
        bar = self._bar
        bar.desc, bar.n, bar.total, bar.ncols = line, min(done, total), total, columns
        bar.refresh()

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """Remove it while a text is printed, and draw it again below."""
        with self._bar.external_write_mode(file=self._bar.fp):
            yield

    def close(self, *, leave: bool) -> None:
        """Remove it, or leave it on the screen as it is and begin another line."""
        self._bar.leave = leave
        self._bar.close()


def open_bar(stream: TextIO, line: str, done: int, total: int, columns: int) -> ProgressBar | None:
    """Draw a bar on a terminal; return None if tqdm is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    quiet = type("Bar", (tqdm,), {"monitor_interval": 0})  # without tqdm's own thread: each change is drawn at once
    bar = quiet(desc=line, initial=min(done, total), total=total, file=stream, ncols=columns, bar_format=_FORMAT)
    return ProgressBar(bar)
