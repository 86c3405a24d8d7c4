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

from clusterfn.bridge.supervisor.text import cut, in_one_line, padded, printable, shortened, width
from clusterfn.display import console

# Control characters, and those that hide or reorder text. A terminal would obey them.
_OBEYED = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_COLOURS = {"green": "32", "red": "31", "yellow": "33", "dim": "2"}
_ESCAPES = len("\x1b[2m\x1b[0m")
# A table that is cut below so many lines says too little.
_READABLE = 3
# Each cell keeps so many columns on a narrow terminal.
_NARROW = 12


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they must be, two blanks apart; the last one is as long as it is."""
    lines = [list(head), *([in_one_line(cell) for cell in row] for row in rows)]
    widths = [max(width(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(map(padded, line, widths)).rstrip() for line in lines)


def narrow_table(head: Sequence[str], rows: Iterable[Sequence[str]], room: int | None, order: Sequence[str]) -> str:
    """Make a `table` that fits into so many columns of a terminal: with shorter cells, and without some titles.

    Args:
        head: The titles. A column of text at the end, which may be cut, has the title "".
        rows: The cells.
        room: How many columns there are; None for as many as it needs.
        order: The titles, those first that stay longest.
    """
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(width(in_one_line(line[column])) for line in lines) for column in range(len(head))]
    if room is None or sum(widths) + 2 * (len(head) - 1) <= room:
        return table(head, lines[1:])
    most = max(_NARROW, room // 3)
    columns, left = [], room
    for title in order:
        column = head.index(title)
        needs = min(widths[column], most if title else _NARROW) + 2
        if needs <= left + 2:
            columns.append(column)
            left -= needs
    cells = [[shortened(in_one_line(line[each]), most) if head[each] else line[each] for each in sorted(columns)]
            for line in lines]  # fmt: skip
    return table(cells[0], cells[1:])


def fitted_lines(text: str, room: int) -> list[str]:
    """Split a text into so few lines: without empty ones, and without the longest paragraphs, or only their ends."""
    lines = text.split("\n")
    if len(lines) <= room:
        return lines
    parts = [part.split("\n") for part in text.split("\n\n")]
    while len(parts) > 1 and sum(min(len(part), _READABLE) for part in parts) > room:
        parts.remove(max(parts, key=len))
    sizes = [len(part) for part in parts]
    while sum(sizes) > room and max(sizes) > 1:
        sizes[sizes.index(max(sizes))] -= 1
    fitted: list[str] = []
    for part, size in zip(parts, sizes):
        whole = size == len(part) or size == 1
        fitted += part[:size] if whole else [*part[: size - 1], f"… {len(part) - size + 1} more"]
    return fitted[:room]


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
            # Escape sequences take no columns. The last column stays free, because terminals wrap a line that fills it.
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
        self._size = shutil.get_terminal_size()

    @property
    def room(self) -> int | None:
        """How many columns a line may have; None if the stream is no terminal."""
        return shutil.get_terminal_size().columns - 1 if self._redrawn else None

    def show(self, text: str) -> None:
        """Show `text`; on a terminal no more of it than there is room for."""
        lines = printable(text).split("\n")
        size, before = shutil.get_terminal_size(), self._size
        if self._redrawn:
            lines = [shortened(line, size.columns - 1) for line in fitted_lines(printable(text), size.lines - 1)]
        if self._redrawn and self._shown is not None and size != before:
            # The terminal has wrapped the old lines to its new width, so their number is unknown: clear all of it.
            self._stream.write("\x1b[H\x1b[J")
        elif self._shown is not None:
            self._stream.write(f"\x1b[{len(self._shown)}A\x1b[J" if self._redrawn and self._shown else "\n")
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._shown, self._size = lines, size
        self._stream.flush()
