"""Lines that are replaced: at the bottom of a terminal by control sequences, below a notebook's cell by updates.

Both classes have the same methods. What is shown is text in both, so a notebook needs no escaping.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Optional, TextIO

from clusterfn.bridge.supervisor.text import in_one_line, padded, shortened, width

# How much is done, of how much.
Progress = Optional[tuple[int, int]]
# A bar has so many columns at least, also where the text next to it is then cut; a notebook has no width to ask for.
_LEAST_BAR = 10
_NOTEBOOK = 100
# A text at the end of a row says something in so many columns.
_LEAST_TEXT = 20
# So many sentences of a cell are shown, and a line that is only replaced changes no more often than this.
_SAID = 20
_EVERY_S = 0.1
_WIDTH = 400
GREEN, RED, YELLOW, DIM = 32, 31, 33, 2


class TerminalLines:
    """Lines at the bottom of a terminal; sentences appear above them.

    Args:
        stream: The terminal; None for what sys.stderr is at the time.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._follows = stream is None
        self._shown: list[str] = []
        self._size = size()
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        """Print a text, which ends with a newline, above the lines."""
        with self._lock:
            self._follow_stderr()
            write(self._stream, (self._erasing() if self._shown else "") + text + "\n".join(self._shown))

    def show(self, text: str, progress: Progress = None) -> None:
        """Replace the lines, with a bar before them if `progress` is given; "" removes them."""
        with self._lock:
            self._follow_stderr()
            erased = self._erasing()
            room = size()
            lines = text.split("\n") if text else []
            if len(lines) >= room.lines:
                lines[room.lines - 2 :] = [f"… {len(lines) - room.lines + 2} more lines"]
            if progress is not None:
                lines[0] = bar(progress, room.columns - width(lines[0])) + lines[0]
            self._shown, self._size = [shortened(line, room.columns) for line in lines], room
            write(self._stream, erased + "\n".join(self._shown))

    def _erasing(self) -> str:
        above = len(self._shown) - 1
        if above > 0 and size() != self._size:
            # The terminal has wrapped the old lines to its new width, so their number is unknown: clear all of it.
            return "\x1b[H\x1b[J"
        return f"\r\x1b[{above}A\x1b[J" if above > 0 else "\r\x1b[K"

    def _follow_stderr(self) -> None:
        """Forget the lines if stderr is another stream by now, as after redirect_stderr."""
        if self._follows and self._stream is not sys.stderr:
            self._stream = sys.stderr
            self._shown = []


class CellLines:
    """Lines below one cell of a notebook: one output that is updated in place. It appears with the first of them."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._shown: list[str] = []
        self._display_id = ""
        self._due = 0.0

    def say(self, text: str) -> None:
        """Add sentences."""
        self._said += [shortened(line, _WIDTH) for line in text.split("\n") if line.strip()]
        self._publish()

    def show(self, text: str, progress: Progress = None) -> None:
        """Replace the last lines, with a bar before them if `progress` is given; "" removes them."""
        lines = [shortened(line, _WIDTH) for line in text.split("\n")] if text else []
        if progress is not None:
            lines[0] = bar(progress, _NOTEBOOK - width(lines[0])) + lines[0]
        if lines != self._shown:
            self._shown = lines
            # A front end takes time for each update, so lines that change often are published only now and then.
            if not lines or time.monotonic() >= self._due:
                self._publish()

    def _publish(self) -> None:
        # Only a notebook needs these, and its kernel has already loaded them.
        import uuid

        from IPython.display import display, update_display

        self._due = time.monotonic() + _EVERY_S
        earlier = len(self._said) - _SAID
        lines = [f"… {earlier} earlier lines"] * (earlier > 0) + self._said[-_SAID:] + self._shown
        shown = {"text/plain": "\n".join(lines)}
        if self._display_id:
            update_display(shown, raw=True, display_id=self._display_id)
        elif lines:
            self._display_id = f"clusterfn-{uuid.uuid4().hex}"
            display(shown, raw=True, display_id=self._display_id)


def of_present_cell() -> CellLines:
    """Return the lines below the cell that runs; below the latest one where none does."""
    shell: Any = sys.modules["IPython"].get_ipython()
    # Threads print below the cell that runs, so the number of the cell decides, and not who asks.
    return _lines_of(shell, shell.execution_count)


@functools.lru_cache(maxsize=1)
def _lines_of(shell: Any, cell: int) -> CellLines:
    return CellLines()


def bar(progress: tuple[int, int], room: int) -> str:
    """Return such as " 25%|###      | " in so many columns.

    Example:
        >>> bar((1, 4), 20)
        ' 25%|###         | '
    """
    columns = max(_LEAST_BAR, room - len("100%|| "))
    share = min(progress[0] / max(progress[1], 1), 1.0)
    return f"{int(share * 100):3d}%|{'#' * int(share * columns):{columns}}| "


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], room: int | None = None, spare: Sequence[str] = ()
) -> str:
    """Columns as wide as they must be, two blanks apart; the last one is as long as it is, and may be cut.

    Args:
        head: The titles.
        rows: The cells.
        room: How many columns the terminal has; None for as many as it needs.
        spare: The titles of those that go first where there is no room for all.
    """
    lines = [list(head), *([in_one_line(cell) for cell in row] for row in rows)]
    widths = [max(width(line[column]) for line in lines) for column in range(len(head))]
    kept = list(range(len(head)))
    needs = [2 + needed for needed in (*widths[:-1], min(widths[-1], _LEAST_TEXT))]
    for title in spare:
        if room is not None and sum(needs[column] for column in kept) > room + 2:
            kept.remove(head.index(title))
    return "\n".join("  ".join(padded(line[column], widths[column]) for column in kept).rstrip() for line in lines)


def coloured(text: str, colour: int) -> str:
    """Return a text as a terminal shows it in one of the colours above."""
    return f"\x1b[{colour}m{text}\x1b[0m"


def size() -> os.terminal_size:
    """Return how large a text may be: one column less than the terminal, as some terminals wrap a full line."""
    found = shutil.get_terminal_size()
    # shutil obeys COLUMNS. Without it, shutil asks stdout, which may be a file.
    if not os.environ.get("COLUMNS"):
        # stderr may be no terminal, or have no file number.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            seen = os.get_terminal_size(sys.stderr.fileno())
            found = seen if seen.columns else found
    return os.terminal_size((max(found.columns - 1, 1), found.lines))


def write(stream: TextIO | None, text: str) -> None:
    """Print; escape characters that the stream cannot encode."""
    if stream is None:
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        # Some terminals and files take ASCII only, and a progress text must not end the program.
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()
