"""What clusterfn itself prints: sentences, and one line that is redrawn on a terminal and in a notebook.

The only module that writes to a terminal, besides the tables of the command line.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import IO, TYPE_CHECKING, TextIO

from clusterfn.bridge.supervisor.text import in_one_line, printable, shortened

if TYPE_CHECKING:
    from clusterfn.notebook.cell_status import CellStatus


class StatusLine:
    """One line of ours: redrawn where `can_redraw`, elsewhere printed again when it changes."""

    def __init__(self) -> None:
        self.line = ""

    def redraw(self, line: str, progress: tuple[int, int] | None = None) -> None:
        """Replace the line where `can_redraw`; "" takes it away, so that output starts at the left."""
        line = in_one_line(line) if cell_status() is not None else fitting(line)
        if line != self.line:
            redraw(line, progress)
            self.line = line

    def say_if_changed(self, line: str) -> None:
        """Print the line where lines stay, unless it is the last one."""
        if line != self.line:
            self.line = line
            say(f"{line}\n")

    def close(self) -> None:
        """Leave the line as it is, and begin another one."""
        if self.line:
            self.line = ""
            say("\n")


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether the stream is a terminal that can redraw a line."""
    return stream is not None and hasattr(stream, "isatty") and stream.isatty() and os.environ.get("TERM") != "dumb"


def cell_status() -> CellStatus | None:
    """Return what shows our lines below the present cell of a notebook; None elsewhere, and where stderr is captured.

    Nothing of ours goes to stderr there, which a notebook shows as an error, in red.
    """
    if type(sys.stderr).__module__ != "ipykernel.iostream":
        return None
    from clusterfn.notebook import cell_status as notebook  # needs IPython, which a kernel has loaded

    return notebook.of_present_cell()


def can_redraw() -> bool:
    """Whether a line of ours can be replaced: on a terminal, and in a notebook."""
    return is_terminal(sys.stderr) or cell_status() is not None


def say(text: str) -> None:
    """Print a text of ours without control sequences that a host or another user may have put into it."""
    cell = cell_status()
    if cell is not None:
        cell.say(printable(text))
    else:
        write(sys.stderr, printable(text))


def tell(sentence: str) -> None:
    """Print a sentence of ours on stderr."""
    say(f"clusterfn: {sentence}\n")


def redraw(line: str, progress: tuple[int, int] | None = None) -> None:
    """Replace the present line of the terminal, where the cursor stays in it, or below a notebook's cell.

    Args:
        line: The text.
        progress: How many of how many calls have ended, which a notebook shows as a bar.
    """
    cell = cell_status()
    if cell is not None:
        cell.redraw(in_one_line(line), progress)
    else:
        write(sys.stderr, f"\r\x1b[K{fitting(line)}")


def fitting(line: str) -> str:
    """Return a line cut to the terminal's width, with "…" at the end if it was longer."""
    return shortened(in_one_line(line), shutil.get_terminal_size().columns - 1)


def write(stream: TextIO | None, text: str) -> None:
    """Print; escape characters that the stream cannot encode."""
    if stream is None:
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()
