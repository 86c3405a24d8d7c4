"""How the items of a group have ended, by its journals, which are read as they grow."""

import json
import os

from ..layout import ATTEMPTS, ELEMENTS, JOURNAL, element_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Optional


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
                for line in self._appended(os.path.join(attempts, str(attempt), JOURNAL)):
                    if isinstance(line.get("index"), int):
                        self.lines.setdefault(line["index"], (element, dict(line, attempt=attempt)))
                    elif "index" in line:
                        self.damage = "the index of an item is %r" % (line["index"],)

    def _appended(self, path: str) -> "Iterator[dict[str, Any]]":
        try:
            with open(path, "rb") as file:
                file.seek(self._read_to.get(path, 0))
                data = file.read()
        except OSError:  # no item of this attempt has begun
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to[path] = self._read_to.get(path, 0) + len(whole)
        for line in whole.split(b"\n"):
            found = journal_line(line)
            if found is not None:
                yield found


def journal_line(line: bytes) -> "Optional[dict[str, Any]]":
    """Return a line of a journal; None if a crash has cut it short; the lines after it are whole."""
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def numbers_in(folder: str) -> "list[int]":
    """Return the names in a folder that are numbers, in order; none if it is not there."""
    try:
        names = os.listdir(folder)
    except OSError:  # not yet, or no longer
        return []
    return sorted(int(name) for name in names if name.isdecimal())
