"""The files of a group: which element has which of its items (claims), and what has become of each (journals).

Claims are made by link(2), one after another, each from where the last one ends. `claims/<chunk>` names the first
element that took it, its first item and how many they are. `claims/<chunk>.2` names the one that took it over, and so
on; the last one has it. It may be taken over once that element has ended for good, or has given it back: then the last
claim is element 0's. `done/<chunk>` exists when each of its items has a line in a journal.

Each attempt of an element writes its own journal: a line when an item begins, and one when it has ended. The values are
in a file next to it. All journals together say what has become of a group.
"""

import errno
import json
import os
import time

from .. import layout
from . import publish
from .attempt import read_usage
from .job import ITEM_LINE, JOB_OUTCOME, JOURNAL_LINE, checked, parse_record
from .publish import names_in, numbers_in
from .text import portable
from .verdict import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Optional

    from .spec import SpecGroup

# Elements are counted from one, so that no element has this number.
NO_ELEMENT = 0
_PIECE = 1 << 20


class Chunks:
    """The chunks of one group, as seen now."""

    def __init__(self, home: str, group: "SpecGroup") -> None:
        self.home = home
        self._count: "int" = group["count"]
        self._items: "dict[int, range]" = {}
        self._over: "dict[int, dict[str, Any]]" = {}

    def make_folders(self) -> None:
        for name in (layout.CLAIMS, layout.DONE):
            os.makedirs(os.path.join(self.home, name), mode=0o700, exist_ok=True)

    def items(self, chunk: int) -> range:
        if chunk not in self._items:
            first, size = self._claim_of(chunk, 1)[1:]
            self._items[chunk] = range(first, first + size)
        return self._items[chunk]

    def take(self, element: int, size: int) -> "Optional[int]":
        """Claim the next items, so many at most, that no element has; None if there are none."""
        chunk = max(self._claims(), default=-1)
        while True:
            first = self.items(chunk).stop if chunk >= 0 else 0
            if first >= self._count:
                return None
            chunk += 1
            if self._claim(str(chunk), (element, first, min(size, self._count - first))):
                return chunk

    def take_all(self, element: int) -> "list[int]":
        return list(iter(lambda: self.take(element, self._count), None))

    def take_over(self, element: int) -> "Optional[int]":
        """Claim a chunk that was given back, or that an element left when it ended for good; None without one."""
        for chunk, turn in self.left_over():
            if self._claim_after(chunk, turn, element):
                return chunk
        return None

    def left_over(self) -> "list[tuple[int, int]]":
        """Return the chunks that another element may take over, each with how often it was claimed."""
        done = set(names_in(os.path.join(self.home, layout.DONE)))
        claims = [(chunk, turn) for chunk, turn in sorted(self._claims().items()) if str(chunk) not in done]
        held = [(chunk, turn, self._holder(chunk, turn)) for chunk, turn in claims]
        left = [(chunk, turn) for chunk, turn, of in held if of == NO_ELEMENT or self.end_of(of) is not None]
        # An element may have finished its chunk and ended since `done` was read.
        return [(chunk, turn) for chunk, turn in left if not self.is_done(chunk)]

    def give_back(self, chunk: int, element: int) -> None:
        """Let another element claim the rest of it, unless one has."""
        turn = self._claims()[chunk]
        if self._holder(chunk, turn) == element:
            self._claim_after(chunk, turn, NO_ELEMENT)

    def _claim_after(self, chunk: int, turn: int, element: int) -> bool:
        claim = (element,) + self._claim_of(chunk, turn)[1:]
        return self._claim("%d.%d" % (chunk, turn + 1), claim)

    def held_by(self, element: int) -> "list[int]":
        """The chunks that an element has, from a start before this one, and has not finished."""
        claims = sorted(self._claims().items())
        return [chunk for chunk, turn in claims if self._holder(chunk, turn) == element and not self.is_done(chunk)]

    def _claim(self, name: str, claim: "tuple[int, ...]") -> bool:
        folder = os.path.join(self.home, layout.CLAIMS)
        data = b"%d %d %d" % claim
        is_new = publish.once_there_is_room(lambda: publish.publish(folder, name, data))
        return is_new or publish.read(folder, name) == data

    def _claims(self) -> "dict[int, int]":
        """Return the chunks that are claimed, and how often."""
        found: "dict[int, int]" = {}
        for name in names_in(os.path.join(self.home, layout.CLAIMS)):
            chunk, _, turn = name.partition(".")
            if chunk.isdecimal() and (turn.isdecimal() or not turn):
                found[int(chunk)] = max(found.get(int(chunk), 1), int(turn or 1))
        return found

    def _claim_of(self, chunk: int, turn: int) -> "tuple[int, ...]":
        """Return the element, the first item and the number of items."""
        name = str(chunk) if turn == 1 else "%d.%d" % (chunk, turn)
        data = publish.read(os.path.join(self.home, layout.CLAIMS), name)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "a claim is gone", os.path.join(self.home, layout.CLAIMS, name))
        return tuple(map(int, data.split()))

    def _holder(self, chunk: int, turn: int) -> int:
        return self._claim_of(chunk, turn)[0]

    def holders(self, chunk: int) -> "list[int]":
        """Return all elements that ever had it, the present one last."""
        return [self._holder(chunk, turn) for turn in range(1, self._claims().get(chunk, 0) + 1)]

    def end_of(self, element: int) -> "Optional[dict[str, Any]]":
        """Return the outcome of an element that has ended for good, else None."""
        folder = os.path.join(layout.element_dir(self.home, element), layout.ATTEMPTS)
        for name in names_in(folder) if element not in self._over else ():
            data = publish.read(os.path.join(folder, name), layout.OUTCOME)
            outcome = parse_record(data, JOB_OUTCOME, layout.OUTCOME) if data else {}
            if outcome.get("final"):
                self._over[element] = outcome
                break
        return self._over.get(element)

    def past(self, chunk: int) -> "tuple[set[int], dict[int, list[str]]]":
        """Which of its items have ended, and which have begun: for each time, what was said if it was followed."""
        ended: "set[int]" = set()
        begun: "dict[int, list[str]]" = {}
        for holder in dict.fromkeys(self.holders(chunk)):
            for line in journal_lines(self.home, holder):
                if "index" in line:
                    ended.add(line["index"])
                elif "begin" in line:
                    begun.setdefault(line["begin"], []).append("")
                elif "retry" in line:
                    # One that is requeued runs again with its element, whatever `retries=` says.
                    begun[line["retry"]][-1:] = [] if line.get("requeued") else [line["told"]]
        return ended, {index: times for index, times in begun.items() if times}

    def usage_of(self, chunk: int, index: int) -> "Optional[dict[str, Any]]":
        """Return what one of its items had used by the last file about it."""
        for holder in reversed(self.holders(chunk)):
            folder = os.path.join(layout.element_dir(self.home, holder), layout.ATTEMPTS)
            for number in reversed(numbers_in(folder)):
                usage = read_usage(os.path.join(folder, str(number), layout.item_usage(index)))
                if usage is not None:
                    return usage
        return None

    def is_done(self, chunk: int) -> bool:
        """Whether each of its items has a line."""
        return os.path.exists(os.path.join(self.home, layout.DONE, str(chunk)))

    def finish(self, chunk: int) -> None:
        path = os.path.join(self.home, layout.DONE, str(chunk))
        os.close(publish.once_there_is_room(lambda: os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)))

    def complete(self) -> bool:
        """Whether each item of the group has a line."""
        last = max(self._claims(), default=-1)
        all_claimed = last >= 0 and self.items(last).stop >= self._count
        return all_claimed and len(names_in(os.path.join(self.home, layout.DONE))) > last

    def ends(self) -> "list[int]":
        """Return where the arguments of each item end in items.pkl."""
        with open(os.path.join(self.home, layout.ITEMS_INDEX)) as file:
            return list(json.loads(file.read()))


class ItemJournal:
    """What one attempt of an element writes.

    Args:
        sync: Whether each line must outlive the machine, and be seen on others at once.
    """

    def __init__(self, folder: str, sync: bool) -> None:
        self._sync = sync
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._lines, self._values = (
            os.open(os.path.join(folder, name), flags, 0o600) for name in (layout.JOURNAL, layout.VALUES)
        )
        self._is_torn = False

    def begin(self, index: int, **facts: "Any") -> None:
        self._line(dict(facts, begin=index))

    def again(self, index: int, why: str, requeued: bool) -> None:
        self._line({"retry": index, "told": why, "requeued": requeued})

    def end(self, index: int, verdict: Verdict, value: str = "", **places: "Any") -> None:
        """Write that an item has ended.

        Args:
            value: The file that holds its value, or what it raised.
            places: Where its output is.
        """
        record = {name: fact for name, fact in verdict.published().items() if fact not in (None, [], "")}
        if verdict.value:
            record["at"] = self._keep(value, verdict.value["size"])
        self._line(dict(record, index=index, kind=verdict.kind or layout.LOST, **places))

    def flush(self) -> None:
        """Let all that was written outlive the machine."""
        # With `sync`, each line outlives the machine already.
        if not self._sync:
            os.fsync(self._values)
            os.fsync(self._lines)

    def _keep(self, path: str, left: int) -> int:
        """Append a value to those before it; return where it begins.

        Args:
            left: Its size: a file that was written again may be longer, because a busy disk is slow to cut it short.
        """
        # A write that failed may have left a part of a value.
        began = os.fstat(self._values).st_size
        with open(path, "rb") as file:
            piece = file.read(min(left, _PIECE))
            while piece:
                _write(self._values, piece)
                left -= len(piece)
                piece = file.read(min(left, _PIECE))
        if self._sync:
            os.fsync(self._values)
        return began

    def _line(self, record: "dict[str, Any]") -> None:
        line = json.dumps(dict(portable(record), t=round(time.time(), 3))) + "\n"
        # A line of which a part was written would otherwise take this one with it.
        data = ("\n" + line if self._is_torn else line).encode()
        self._is_torn = True
        _write(self._lines, data)
        self._is_torn = False
        if self._sync:
            os.fsync(self._lines)


def _write(fd: int, data: bytes) -> None:
    """All of it, once there is room on a full disk: what was half written continues where it stopped."""
    view = memoryview(data)
    while view:
        view = view[publish.once_there_is_room(lambda rest=view: os.write(fd, rest)) :]  # type: ignore[misc]


def journal_lines(home: str, element: int) -> "Iterator[dict[str, Any]]":
    """Yield all whole lines of one element of a group, attempt after attempt, each with the number of its attempt.

    Raises:
        DamagedFile: One of them is whole, and no supervisor has written it.
    """
    folder = os.path.join(layout.element_dir(home, element), layout.ATTEMPTS)
    for number in numbers_in(folder):
        for found in _read_lines(os.path.join(folder, str(number), layout.JOURNAL))[0]:
            yield dict(checked(found, ITEM_LINE if "index" in found else JOURNAL_LINE, layout.JOURNAL), attempt=number)


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
        for element in numbers_in(os.path.join(self.home, layout.ELEMENTS)):
            attempts = os.path.join(layout.element_dir(self.home, element), layout.ATTEMPTS)
            for attempt in numbers_in(attempts):
                path = os.path.join(attempts, str(attempt), layout.JOURNAL)
                lines, self._read_to[path] = _read_lines(path, self._read_to.get(path, 0))
                for line in lines:
                    if isinstance(line.get("index"), int):
                        self.lines.setdefault(line["index"], (element, dict(line, attempt=attempt)))
                    elif "index" in line:
                        self.damage = "the index of an item is %r" % (line["index"],)


def journal_line(line: bytes) -> "Optional[dict[str, Any]]":
    """Return a line of a journal; None if a crash has cut it short; the lines after it are whole."""
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
