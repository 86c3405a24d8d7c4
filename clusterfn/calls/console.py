"""What clusterfn itself prints: sentences, and one line that is redrawn on a terminal and in a notebook.

The only module that writes to a terminal, besides the tables of the command line.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from typing import IO, TYPE_CHECKING, TextIO

from clusterfn.bridge.supervisor.text import in_one_line, printable, shortened
from clusterfn.config import config_file

if TYPE_CHECKING:
    from clusterfn.notebook.cell_status import CellStatus

_log = logging.getLogger("clusterfn")
_QUIET = "CLUSTERFN_QUIET"


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
    if type(sys.stderr).__module__ != "ipykernel.iostream" or is_logged():
        return None
    from clusterfn.notebook import cell_status as notebook  # needs IPython, which a kernel has loaded

    return notebook.of_present_cell()


def can_redraw() -> bool:
    """Whether a line of ours can be replaced: on a terminal, and in a notebook."""
    return not is_logged() and (is_terminal(sys.stderr) or cell_status() is not None)


def is_shown(level: int) -> bool:
    """Whether texts of this level are shown: of the module `logging`, INFO for progress, WARNING for what went wrong.

    $CLUSTERFN_QUIET, or else `quiet:` in clusterfn.yml, hides progress. So does a level of the logger "clusterfn".
    """
    given = os.environ.get(_QUIET)
    quiet = config_file.quiet if given is None else given.lower() not in ("", "0", "false", "no", "off")
    least = max(_log.level, logging.WARNING if quiet else logging.NOTSET)
    return level >= least and level > _log.manager.disable


def is_logged() -> bool:
    """Whether the user has given the logger "clusterfn" a handler, which gets our texts instead of stderr."""
    return any(not isinstance(handler, logging.NullHandler) for handler in _log.handlers)


def say(text: str, level: int = logging.INFO) -> None:
    """Print a text of ours without control sequences that a host or another user may have put into it."""
    if not is_shown(level):
        return
    text = printable(text)
    if is_logged():
        if text.strip():
            _log.log(level, "%s", text.strip().removeprefix("clusterfn: "))
    elif (cell := cell_status()) is not None:
        cell.say(text)
    else:
        write(sys.stderr, text)


def tell(sentence: str) -> None:
    """Print a sentence about progress."""
    say(f"clusterfn: {sentence}\n")


def warn(sentence: str) -> None:
    """Print a sentence about what went wrong or deserves attention, in quiet mode too."""
    say(f"clusterfn: {sentence}\n", logging.WARNING)


def redraw(line: str, progress: tuple[int, int] | None = None) -> None:
    """Replace the present line of the terminal, where the cursor stays in it, or below a notebook's cell.

    Args:
        line: The text.
        progress: How many of how many calls have ended, which a notebook shows as a bar.
    """
    if not is_shown(logging.INFO) or is_logged():
        return
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
