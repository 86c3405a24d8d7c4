"""Which items of a group may run: those whose inputs have ended.

The items of such a group start in blocks, mostly of one item. An element takes blocks whose inputs have ended, and ends
or waits in the queue again when there are none: it must not hold anything that its inputs may need. A scheduler with
nodes is told for each element once to start it. So element k of m starts when k of m parts of the blocks can run. Those
before it have taken at most the parts before, and the last finds all that is left.
"""

import os

from ..fast_start import dumps
from ..layout import INPUTS, ITEM_INPUTS
from . import publish
from .chunks import Chunks, unclaimed
from .dependencies import Dependencies
from .job import WHOLE, DamagedFile, Dependency, checked, dependencies_of, parse_record
from .text import portable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .attempt import Attempt
    from .spec import Spec
    from .verdict import Verdict


# It is a job, and the index of an item or null.
_TAKEN = (str, int, type(None))
_SHAPE = {"all": [[_TAKEN]], "items": [[[_TAKEN]]]}
_GROUP = {"count": WHOLE, "elements": WHOLE, "block?": WHOLE}


class ItemInputs:
    """The inputs of the items of one group.

    Args:
        home: The group's folder.
        spec: Its spec.json.
        values: What has become of the jobs of its root.

    Attributes:
        count: How many blocks there are.
    """

    def __init__(self, home: str, spec: "Spec", values: Dependencies) -> None:
        checked(spec["group"], _GROUP, "the group in spec.json")
        self.home = home
        self.values = values
        self._wanted = {each.job: each for each in dependencies_of(spec)}
        self._block: "int" = spec["group"].get("block") or 1
        self._elements: "int" = spec["group"]["elements"]
        with open(os.path.join(home, ITEM_INPUTS), "rb") as file:
            inputs = parse_record(file.read(), _SHAPE, ITEM_INPUTS)
        self._of_all: "list[list[Any]]" = inputs["all"]
        self._of_items: "list[list[list[Any]]]" = inputs["items"]
        self.count: "int" = -(-len(self._of_items) // self._block)
        self._ready: "set[int]" = set()
        self._chunks = Chunks(home, spec["group"])
        self._gave_up = False

    def ready(self) -> "list[int]":
        """Return the blocks that can run, as far as `values` have been looked at."""
        blocks = range(self.count)
        if self._gave_up or not self.values.still_open(self._wanted.values()):
            self._ready.update(blocks)
        elif all(map(self.values.has_ended, self._merged(self._of_all))):
            self._ready.update(block for block in blocks if block not in self._ready and self._has_ended(block))
        return sorted(self._ready)

    def look_again(self) -> None:
        """Look again at what had not ended."""
        self.values.look_again()

    def give_up(self) -> None:
        """Let every block run: an item whose input has not ended fails."""
        self._gave_up = True

    def untaken(self) -> "list[int]":
        """Return the blocks that can run, and that no element has, or has any more."""
        return unclaimed(self.home, self.ready()) + [block for block, _ in self._chunks.left_over()]

    def all_taken(self) -> bool:
        """Whether each block is an element's."""
        return not unclaimed(self.home, range(self.count))

    def threshold(self, element: int) -> int:
        """Return how many blocks must be able to run before this element starts."""
        return self.count if element >= self._elements else -(-element * self.count // self._elements)

    def may_start(self, element: int) -> bool:
        """Whether an element would find work, and those before it too."""
        return len(self.ready()) >= self.threshold(element)

    def producers(self) -> "list[str]":
        """Return the jobs whose values the items take."""
        return sorted(self._wanted)

    def in_words(self) -> str:
        """Say what the items wait for."""
        return self.values.describe_open(self._wanted.values())

    def failure(self, index: int) -> "Optional[Verdict]":
        """Return the verdict on an item, if a value that it takes will never exist."""
        return self.values.failure(self._merged(self._of_all + self._of_items[index]))

    def write_places(self, attempt: "Attempt", block: int) -> None:
        """Write where the values lie that the items of a block take into inputs.json of the attempt."""
        wanted = self._merged(self._of_all + self._of_block(block))
        if not all(map(self.values.has_ended, wanted)):
            # Another element has seen the input end.
            self.look_again()
        publish.replace(attempt.path(INPUTS), dumps(portable(self.values.places(wanted))).encode())

    def _has_ended(self, block: int) -> bool:
        return all(map(self.values.has_ended, self._merged(self._of_block(block))))

    def _of_block(self, block: int) -> "list[list[Any]]":
        items = self._of_items[block * self._block : (block + 1) * self._block]
        return [each for item in items for each in item]

    def _merged(self, taken: "list[list[Any]]") -> "list[Dependency]":
        """Return these inputs, [job, item] each, as one for each job."""
        items: "dict[str, Optional[set[int]]]" = {}
        for job, item in taken:
            before = items.setdefault(job, set())
            if item is None or before is None:
                items[job] = None
            else:
                before.add(item)
        return [self._wanted[job]._replace(items=some and sorted(some)) for job, some in items.items()]


def item_inputs_of(home: str, spec: "Spec", values: Dependencies) -> "Optional[ItemInputs]":
    """Return the inputs of a group's items; None if all items wait for all inputs, or the group is damaged."""
    block = spec["group"].get("block") if "group" in spec else None
    return known_inputs(home, spec, values) if block else None


def known_inputs(home: str, spec: "Spec", values: Dependencies) -> "Optional[ItemInputs]":
    """Return the inputs of a group's items, whether these start one by one or not; None if they are not known."""
    if not spec.get("after"):
        return None
    try:
        return ItemInputs(home, spec, values)
    except (OSError, DamagedFile):
        # The functions of the group may write into its folder.
        return None
