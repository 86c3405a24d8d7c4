"""The journals of a group: what its elements write of their items, and how these have ended.

Each attempt of an element writes its own journal: a line when an item begins, and one when it has ended. The values are
in a file next to it. All journals together say what has become of a group.
"""

import os
import time

from ..fast_start import dumps, loads
from ..layout import ATTEMPTS, ELEMENTS, JOURNAL, LOST, VALUES, element_dir
from . import publish
from .job import ITEM_LINE, JOURNAL_LINE, checked
from .publish import numbers_in
from .text import portable
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Optional

_TRY_FOR_S = 30.0
_PIECE = 1 << 20


class ItemJournal:
    """What one attempt of an element writes.

    Args:
        folder: The attempt's.
        sync: Whether each line must outlive the machine, and be seen on others at once.
    """

    def __init__(self, folder: str, sync: bool) -> None:
        self._sync = sync
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._lines, self._values = (os.open(os.path.join(folder, name), flags, 0o600) for name in (JOURNAL, VALUES))
        self._is_torn = False

    def begin(self, index: int, **facts: "Any") -> None:
        """Write that an item is about to run."""
        self._line(dict(facts, begin=index))

    def again(self, index: int, why: str) -> None:
        """Write that an item failed and is about to run again."""
        self._line({"retry": index, "told": why})

    def end(self, index: int, verdict: Verdict, value: str = "", **places: "Any") -> None:
        """Write that an item has ended.

        Args:
            index: Which item.
            verdict: How.
            value: The file that holds its value, or what it raised.
            places: Where its output is.
        """
        record = {name: fact for name, fact in verdict.published().items() if fact not in (None, [], "")}
        if verdict.value:
            record["at"] = self._keep(value)
        self._line(dict(record, index=index, kind=verdict.kind or LOST, **places))

    def flush(self) -> None:
        """Let all that was written outlive the machine."""
        # With `sync`, each line outlives the machine already.
        if not self._sync:
            os.fsync(self._values)
            os.fsync(self._lines)

    def _keep(self, path: str) -> int:
        """Append a value to those before it; return where it begins."""
        # A write that failed may have left a part of a value.
        began = os.fstat(self._values).st_size
        with open(path, "rb") as file:
            piece = file.read(_PIECE)
            while piece:
                _write(self._values, piece)
                piece = file.read(_PIECE)
        if self._sync:
            os.fsync(self._values)
        return began

    def _line(self, record: "dict[str, Any]") -> None:
        line = dumps(dict(portable(record), t=round(time.time(), 3))) + "\n"
        # A line of which a part was written would otherwise take this one with it.
        data = ("\n" + line if self._is_torn else line).encode()
        self._is_torn = True
        _write(self._lines, data)
        self._is_torn = False
        if self._sync:
            os.fsync(self._lines)


def _write(fd: int, data: bytes) -> None:
    """All of it, waiting half a minute for room on a full disk: what was half written continues where it stopped."""
    view, until = memoryview(data), time.monotonic() + _TRY_FOR_S
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError as error:
            if error.errno not in publish.FULL or time.monotonic() > until:
                raise
            time.sleep(1.0)


def journal_lines(home: str, element: int) -> "Iterator[dict[str, Any]]":
    """Yield all whole lines of one element of a group, attempt after attempt, each with the number of its attempt.

    Raises:
        DamagedFile: One of them is whole, and no supervisor has written it.
    """
    folder = os.path.join(element_dir(home, element), ATTEMPTS)
    for number in numbers_in(folder):
        for found in _read_lines(os.path.join(folder, str(number), JOURNAL))[0]:
            yield dict(checked(found, ITEM_LINE if "index" in found else JOURNAL_LINE, JOURNAL), attempt=number)


def _read_lines(path: str, start: int = 0) -> "tuple[list[dict[str, Any]], int]":
    """Return the whole lines of a journal from an offset on, and where the last one ends."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read()
    except OSError:
        # No item of this attempt has begun.
        return [], start
    end = data.rfind(b"\n") + 1
    lines = map(journal_line, data[:end].split(b"\n"))
    return [line for line in lines if line is not None], start + end


class ItemEnds:
    """The last line of each item that has ended.

    Args:
        home: The group's folder.

    Attributes:
        lines: By item, the element that wrote the line, and the line with the number of its attempt.
        damage: What is wrong with a line that no supervisor has written; "" if there is none.
    """

    def __init__(self, home: str) -> None:
        self.home = home
        self.lines: "dict[int, tuple[int, dict[str, Any]]]" = {}
        self.damage = ""
        self._read_to: "dict[str, int]" = {}

    def look(self) -> None:
        """Read what was appended since the last look."""
        for element in numbers_in(os.path.join(self.home, ELEMENTS)):
            attempts = os.path.join(element_dir(self.home, element), ATTEMPTS)
            for attempt in numbers_in(attempts):
                path = os.path.join(attempts, str(attempt), JOURNAL)
                lines, self._read_to[path] = _read_lines(path, self._read_to.get(path, 0))
                for line in lines:
                    if isinstance(line.get("index"), int):
                        self.lines.setdefault(line["index"], (element, dict(line, attempt=attempt)))
                    elif "index" in line:
                        self.damage = "the index of an item is %r" % (line["index"],)


def journal_line(line: bytes) -> "Optional[dict[str, Any]]":
    """Return a line of a journal; None if a crash has cut it short; the lines after it are whole."""
    try:
        found = loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
