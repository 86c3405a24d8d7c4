"""What clusterfn itself prints on stderr: sentences, and one line that is redrawn on a terminal.

The only module that writes to a terminal, besides the tables of the command line.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import IO, TextIO

from clusterfn.bridge.supervisor.text import in_one_line, printable, shortened


class StatusLine:
    """One line of ours: redrawn on a terminal, elsewhere printed again when it changes."""

    def __init__(self) -> None:
        self.line = ""

    def redraw(self, line: str) -> None:
        """Replace the line on a terminal; "" takes it away, so that output starts at the left."""
        line = fitting(line)
        if line != self.line:
            redraw(line)
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


def say(text: str) -> None:
    """Print a text of ours without control sequences that a host or another user may have put into it."""
    write(sys.stderr, printable(text))


def tell(sentence: str) -> None:
    """Print a sentence of ours on stderr."""
    say(f"clusterfn: {sentence}\n")


def redraw(line: str) -> None:
    """Replace the present line of the terminal; the cursor stays in it."""
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
