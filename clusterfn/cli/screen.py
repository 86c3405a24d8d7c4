"""Text for a terminal: tables, a little colour, and nothing that a remote text could do to the terminal.

Pure but for asking whether a stream is a terminal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from clusterfn.bridge.supervisor.text import cut, in_one_line, padded, printable, width
from clusterfn.calls import console

_OBEYED = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_COLOURS = {"green": "32", "red": "31", "yellow": "33", "dim": "2"}
_ESCAPES = len("\x1b[2m\x1b[0m")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they must be, two blanks apart; the last one is as long as it is."""
    lines = [list(head), *([in_one_line(cell) for cell in row] for row in rows)]
    widths = [max(width(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(map(padded, line, widths)).rstrip() for line in lines)


def as_json(value: Any) -> str:
    """Words in their own letters; in JSON's strings, only what a terminal obeys must also be escaped."""
    return _OBEYED.sub(lambda sign: f"\\u{ord(sign[0]):04x}", json.dumps(value, ensure_ascii=False))


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """`text` in a colour if the stream is a terminal and the user has not set NO_COLOR."""
    if os.environ.get("NO_COLOR") or not console.is_terminal(stream):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


class Line:
    """A line that changes: redrawn in its place on a terminal, elsewhere printed again when it says something else.

    Attributes:
        redrawn: Whether the stream is such a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self.redrawn = console.is_terminal(stream)
        self._stream = stream
        self._shown = ""

    def show(self, text: str, what: str) -> None:
        """Show `text`; `what` is what it says, without clocks and colours."""
        if self.redrawn:
            columns = shutil.get_terminal_size().columns - 1 + (_ESCAPES if "\x1b" in text else 0)
            self._stream.write(f"\r\x1b[K{cut(text, columns)}")
        elif what != self._shown:
            self._stream.write(f"{text}\n")
        self._shown = what
        self._stream.flush()

    def clear(self) -> None:
        """Take the line away, so that the next text starts at the left."""
        if self.redrawn and self._shown:
            self._stream.write("\r\x1b[K")
            self._shown = ""


class Block:
    """Lines that change: redrawn in their place on a terminal, elsewhere printed again below an empty line."""

    def __init__(self, stream: TextIO) -> None:
        self._redrawn = console.is_terminal(stream)
        self._stream = stream
        self._shown: list[str] | None = None

    def show(self, text: str) -> None:
        """Show `text`; on a terminal no more of it than there is room for."""
        lines = printable(text).split("\n")
        if self._redrawn:
            size = shutil.get_terminal_size()
            lines = [cut(line, size.columns - 1) for line in lines[: size.lines - 1]]
        if self._shown is not None:
            self._stream.write(f"\x1b[{len(self._shown)}A\x1b[J" if self._redrawn and self._shown else "\n")
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._shown = lines
        self._stream.flush()


def age(seconds: float) -> str:
    """Format a duration in its largest unit.

    Example:
        >>> age(7300)
        '2 h'
    """
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def size(amount: float) -> str:
    """Bytes in a unit that suits them.

    Example:
        >>> size(3 * 2**30)
        '3.0 GB'
    """
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"
