"""One writer's account of the items that it ran: a line when one begins, one when it has ended, the values beside it.

Each attempt of an element has its own; all of them together say what has become of a group. Knows nothing of
processes.
"""

import errno
import json
import os
import time

from ..layout import ATTEMPTS, JOURNAL, VALUES, element_dir
from .text import portable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TRY_FOR_S = 30.0
_PIECE = 1 << 20


class ItemJournal:
    """What one attempt of an element writes.

    Args:
        folder: The attempt's.
        sync: Whether it must outlive the machine, and be seen on others at once.
    """

    def __init__(self, folder: str, sync: bool) -> None:
        self._sync = sync
        self._lines, self._values = (_append_to(os.path.join(folder, name)) for name in (JOURNAL, VALUES))
        self._at = os.fstat(self._values).st_size

    def begin(self, index: int, **facts: "Any") -> None:
        """An item is about to run."""
        self._line(dict(facts, begin=index))

    def again(self, index: int, told: str) -> None:
        """What it did came to nothing, and it is about to run once more."""
        self._line({"retry": index, "told": told})

    def end(self, index: int, kind: str, facts: "dict[str, Any]", value: str = "") -> None:
        """An item has ended; `value` is the file that holds what `facts["value"]` describes."""
        told = {name: fact for name, fact in facts.items() if fact not in (None, [], "")}
        if facts.get("value"):
            told["at"] = self._keep(value)
        self._line(dict(told, index=index, kind=kind))

    def _keep(self, path: str) -> int:
        """Copy a value behind those before it; where it begins."""
        began = self._at
        with open(path, "rb") as file:
            piece = file.read(_PIECE)
            while piece:
                _write(self._values, piece)
                self._at += len(piece)
                piece = file.read(_PIECE)
        if self._sync:
            os.fsync(self._values)
        return began

    def _line(self, record: "dict[str, Any]") -> None:
        _write(self._lines, (json.dumps(dict(portable(record), t=round(time.time(), 3))) + "\n").encode())
        if self._sync:
            os.fsync(self._lines)


def _append_to(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _write(fd: int, data: bytes) -> None:
    """All of it, waiting half a minute for room on a full disk: what was half written goes on where it stopped."""
    view, until = memoryview(data), time.monotonic() + _TRY_FOR_S
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError as error:
            if error.errno not in _FULL or time.monotonic() > until:
                raise
            time.sleep(1.0)


def lines(home: str, element: int) -> "Iterator[dict[str, Any]]":
    """All whole lines of one element of a group, attempt after attempt."""
    folder = os.path.join(element_dir(home, element), ATTEMPTS)
    try:
        numbers = sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
    except OSError:  # it has not begun
        return
    for number in numbers:
        for line in _whole_lines(os.path.join(folder, str(number), JOURNAL)):
            try:
                yield json.loads(line.decode())
            except ValueError:  # torn by a crash, and gone on behind it
                continue


def _whole_lines(path: str) -> "list[bytes]":
    try:
        with open(path, "rb") as file:
            return file.read().split(b"\n")[:-1]
    except OSError:
        return []
