"""Which element has which chunk of a group's items: claims by link(2), one after another where an element has died.

`claims/<chunk>` names the first element that took it, `claims/<chunk>.2` the one that took it over, and so on; the last
one has it. It may be taken over once that element has ended for good. `done/<chunk>` stands when each of its items has
a line in a journal. Called by `element` and `grouped`.
"""

import json
import os

from ...layout import ATTEMPTS, CLAIMS, DONE, ITEMS_INDEX, OUTCOME, element_dir
from . import journal, publish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


class Chunks:
    """The chunks of one group, as seen now.

    Args:
        home: The group's folder.
        group: The part of spec.json about it.

    Attributes:
        number: How many there are.
    """

    def __init__(self, home: str, group: "dict[str, Any]") -> None:
        self.home = home
        self._count, self._size = group["count"], group["chunk"]
        self.number: "int" = -(-self._count // self._size)
        self._over: "dict[int, dict[str, Any]]" = {}
        for name in (CLAIMS, DONE):
            os.makedirs(os.path.join(home, name), mode=0o700, exist_ok=True)

    def items(self, chunk: int) -> range:
        """The indices of its items."""
        return range(chunk * self._size, min((chunk + 1) * self._size, self._count))

    def take(self, element: int) -> "Optional[int]":
        """Claim a chunk that nobody has; None if there is none."""
        skip = element - 1  # where many begin at once they do not all reach for the same
        while True:
            claimed = self._claims()
            free = [chunk for chunk in range(self.number) if chunk not in claimed]
            if not free:
                return None
            chunk = free[skip % len(free)]
            if self._claim(str(chunk), element):
                return chunk

    def take_all(self, element: int) -> "list[int]":
        """Claim every chunk that nobody has, by links of one file: there may be thousands."""
        folder, holder = os.path.join(self.home, CLAIMS), b"%d" % element
        claimed = self._claims()
        own = os.path.join(folder, ".all-%d-%d" % (element, os.getpid()))
        with open(own, "wb") as file:
            file.write(holder)
            file.flush()
            os.fsync(file.fileno())
        free = [chunk for chunk in range(self.number) if chunk not in claimed]
        for chunk in free:
            try:
                os.link(own, os.path.join(folder, str(chunk)))
            except OSError:  # taken meanwhile, or links are refused
                self._claim(str(chunk), element)
        os.unlink(own)
        return [chunk for chunk in free if publish.read(folder, str(chunk)) == holder]

    def take_over(self, element: int) -> "Optional[int]":
        """Claim a chunk whose element has ended for good and left items; None if there is none."""
        for chunk, turn in sorted(self._claims().items()):
            if self.is_done(chunk):
                continue
            holder = self._holder(chunk, turn)
            if holder is not None and self.end_of(holder) and self._claim("%d.%d" % (chunk, turn + 1), element):
                return chunk
        return None

    def held_by(self, element: int) -> "list[int]":
        """The chunks that an element has, from a start before this one, and has not finished."""
        claims = sorted(self._claims().items())
        return [chunk for chunk, turn in claims if self._holder(chunk, turn) == element and not self.is_done(chunk)]

    def _claim(self, name: str, element: int) -> bool:
        folder, holder = os.path.join(self.home, CLAIMS), b"%d" % element
        return publish.publish(folder, name, holder) or publish.read(folder, name) == holder

    def _claims(self) -> "dict[int, int]":
        """The chunks that are claimed, and how often."""
        found: "dict[int, int]" = {}
        for name in os.listdir(os.path.join(self.home, CLAIMS)):
            chunk, _, turn = name.partition(".")
            if chunk.isdigit() and (turn.isdigit() or not turn):
                found[int(chunk)] = max(found.get(int(chunk), 1), int(turn or 1))
        return found

    def _holder(self, chunk: int, turn: int) -> "Optional[int]":
        name = str(chunk) if turn == 1 else "%d.%d" % (chunk, turn)
        data = publish.read(os.path.join(self.home, CLAIMS), name)
        return int(data) if data else None

    def holders(self, chunk: int) -> "list[int]":
        """All elements that ever had it, the present one last."""
        turns = range(1, self._claims().get(chunk, 0) + 1)
        found = [self._holder(chunk, turn) for turn in turns]
        return [holder for holder in found if holder is not None]

    def end_of(self, element: int) -> "Optional[dict[str, Any]]":
        """The outcome of an element that has ended for good."""
        if element not in self._over:
            found = _final_outcome(os.path.join(element_dir(self.home, element), ATTEMPTS))
            if found is None:
                return None
            self._over[element] = found
        return self._over[element]

    def past(self, chunk: int) -> "tuple[set[int], set[int]]":
        """Which of its items have ended, and which have begun, so far."""
        ended: "set[int]" = set()
        begun: "set[int]" = set()
        for holder in dict.fromkeys(self.holders(chunk)):
            for line in journal.lines(self.home, holder):
                if "index" in line:
                    ended.add(line["index"])
                elif "begin" in line:
                    begun.add(line["begin"])
        return ended, begun

    def is_done(self, chunk: int) -> bool:
        """Whether each of its items has a line."""
        return os.path.exists(os.path.join(self.home, DONE, str(chunk)))

    def finish(self, chunk: int) -> None:
        """Each of its items has a line."""
        os.close(os.open(os.path.join(self.home, DONE, str(chunk)), os.O_WRONLY | os.O_CREAT, 0o600))

    def complete(self) -> bool:
        """Whether each item of the group has a line."""
        return len(os.listdir(os.path.join(self.home, DONE))) >= self.number

    def ends(self) -> "list[int]":
        """Where the arguments of each item end in items.pkl."""
        with open(os.path.join(self.home, ITEMS_INDEX)) as file:
            return list(json.load(file))


def _final_outcome(folder: str) -> "Optional[dict[str, Any]]":
    try:
        names = os.listdir(folder)
    except OSError:  # it has not begun
        return None
    for name in names:
        data = publish.read(os.path.join(folder, name), OUTCOME)
        outcome: "dict[str, Any]" = json.loads(data.decode()) if data else {}
        if outcome.get("final"):
            return outcome
    return None
