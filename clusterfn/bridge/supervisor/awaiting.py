"""Wait for the values of other jobs: a job that takes them, and the items of a group that start one by one.

A job that waits here may hold an allocation. So it begins only when its scheduler, or the queue, takes them for ended.

The items of such a group start in blocks, mostly of one item. An element takes blocks whose inputs have ended, and ends
or waits in the queue again when there are none: it must not hold anything that its inputs may need. A scheduler with
nodes gets one request to start each element. So element k of m starts when k of m parts of the blocks can run. Those
before it have taken at most the parts before, and the last finds all that is left.

The group leaves a file in the folder of each job whose value one of its items takes: the job tells the scheduler of the
group, or its queue. Where a scheduler has the elements, they wait by its own option until all inputs have ended. The
process that sees enough inputs end lets an element start earlier, once. If the scheduler refuses, the element starts as
without it.
"""

import contextlib
import json
import os
import time

from .. import layout
from . import publish
from .attempt import make_folder
from .dependencies import Dependencies, ended_by_scheduler, keep_exception, last_beat
from .group_files import Chunks, unclaimed
from .job import (
    WHOLE,
    DamagedFile,
    Dependency,
    JobFolder,
    checked,
    dependencies_of,
    describe_waiting,
    parse_record,
    read_spec,
)
from .text import portable
from .verdict import AttemptEnded, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .attempt import Attempt, RunnableAttempt
    from .spec import Spec
    from .verdict import Verdict
    from .watch import EndWatch

_LOOK_S = 0.5
# It is a job, and the index of an item or null.
_TAKEN = (str, int, type(None))
_SHAPE = {"all": [[_TAKEN]], "items": [[[_TAKEN]]]}
_GROUP = {"count": WHOLE, "elements": WHOLE, "block?": WHOLE}
_ARRAY = {"number": str, "besides": str, "first": WHOLE, "count": WHOLE}
_REFUSALS = 2


def await_values(
    job: JobFolder, attempt: "RunnableAttempt", watch: "EndWatch", inputs: "Optional[ItemInputs]" = None
) -> None:
    """Wait until no dependency is open, and write where their values lie into inputs.json of the attempt.

    A scheduler starts the job once they are over for it. Then an outcome comes late only from a slow file system.

    Args:
        inputs: Of an element whose items start one by one: it waits only until enough of them can run.

    Raises:
        AttemptEnded: One of them has no value, or the job was ended while it waited.
    """
    found = Dependencies(job.root) if inputs is None else inputs.values
    wanted, reason, began = dependencies_of(job.spec), "", time.monotonic()
    open_ones = found.still_open(wanted)
    while open_ones and (inputs is None or not inputs.may_start(job.element or 0)):
        watch.look()
        silent_s = time.time() - max(last_beat(layout.job_dir(job.root, each.job)) for each in open_ones)
        if job.scheduler.has_nodes and min(time.monotonic() - began, silent_s) > layout.STALE_AFTER_S:
            listed = job.scheduler.listed_jobs(job.spec.get("clusters") or "")
            if listed is not None and not any(each.job in listed or found.is_refused(each.job) for each in open_ones):
                break
            # The scheduler has it or does not answer. Its client may have started more of it.
            began = time.monotonic()
        if found.describe_open(wanted) != reason:
            reason = found.describe_open(wanted)
            attempt.wait(reason)
        time.sleep(_LOOK_S)
        found.look_again()
        open_ones = found.still_open(wanted)
    # Each item gets the places of its own inputs.
    if inputs is not None:
        if open_ones and not inputs.may_start(job.element or 0):
            inputs.give_up()
        return
    # Each item of a group fails by itself.
    if job.element is None:
        # What it was admitted for without any resources is final.
        refusal = job.held.refusal
        failed = refusal if refusal is not None and refusal.kind == layout.DEPENDENCY else found.failure(wanted)
        if failed is None and open_ones:
            failed = ended_by_scheduler(open_ones[0], describe_waiting(open_ones))
        if failed is not None:
            raise AttemptEnded(keep_exception(failed, attempt.path(layout.VALUE)))
    publish.replace(attempt.path(layout.INPUTS), json.dumps(portable(found.places(wanted))).encode())


class ItemInputs:
    """The inputs of the items of one group.

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
        with open(os.path.join(home, layout.ITEM_INPUTS), "rb") as file:
            inputs = parse_record(file.read(), _SHAPE, layout.ITEM_INPUTS)
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
        self.values.look_again()

    def give_up(self) -> None:
        """Let every block run: an item whose input has not ended fails."""
        self._gave_up = True

    def untaken(self) -> "list[int]":
        """Return the blocks that can run, and that no element has, or has any more."""
        return unclaimed(self.home, self.ready()) + [block for block, _ in self._chunks.left_over()]

    def all_taken(self) -> bool:
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
        publish.replace(attempt.path(layout.INPUTS), json.dumps(portable(self.values.places(wanted))).encode())

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


def register_group(root: str, group: str, producers: "list[str]", array: "Optional[dict[str, Any]]" = None) -> None:
    """Leave a file with these jobs: a group takes their values, and its items start one by one.

    Args:
        array: The scheduler's number of an array of its elements, how many elements come before it, how many it has,
            and what they wait for in addition: `number`, `first`, `count`, `besides`. None in our own queue.
    """
    name = group if array is None else "%s.%s" % (group, array["number"])
    for job in producers:
        folder = os.path.join(layout.job_dir(root, job), layout.TAKERS)
        # The job is not on the host or the disk is full. The group starts when all have ended.
        with contextlib.suppress(OSError):
            make_folder(folder)
            publish.replace(os.path.join(folder, name), json.dumps(array or {}).encode())


def register_array(home: str, number: str, first: str, count: str, besides: str) -> int:
    """Register an array of a group's elements with the jobs whose values its items take, and start what can run."""
    job = JobFolder(home)
    inputs = item_inputs_of(job.home, job.spec, Dependencies(job.root))
    if inputs is not None and number.isdecimal():
        array = {"number": number, "first": int(first), "count": int(count), "besides": besides}
        register_group(job.root, job.id, inputs.producers(), array)
        _Array(job.home, job.spec, array, inputs).release()
    return 0


class Takers:
    """The groups that take the value of a job, or of its items, one by one."""

    def __init__(self, job: JobFolder) -> None:
        self.job = job
        self._folder = os.path.join(job.home, layout.TAKERS)
        self._arrays: "dict[str, Optional[_Array]]" = {}

    def tell(self) -> None:
        """Let what waits for the value that has just appeared start."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            # No group takes it item by item.
            return
        if not self.job.scheduler.has_nodes:
            # This import is late, because the values of few jobs are taken item by item.
            from ..queue import launch

            launch.revive_spooler(self.job.root, self.job.spec["bridge"])
            return
        for name in names:
            if name not in self._arrays:
                self._arrays[name] = self._array(name)
            array = self._arrays[name]
            if array is not None:
                array.release()

    def _array(self, name: str) -> "Optional[_Array]":
        home = layout.job_dir(self.job.root, name.partition(".")[0])
        try:
            array = parse_record(publish.read(self._folder, name), _ARRAY, layout.TAKERS)
            spec = read_spec(home)
            inputs = item_inputs_of(home, spec, Dependencies(self.job.root))
            return None if inputs is None else _Array(home, spec, array, inputs)
        except (OSError, DamagedFile):
            return None


class _Array:
    """An array of a group's elements at a scheduler."""

    def __init__(self, home: str, spec: "Spec", array: "dict[str, Any]", inputs: ItemInputs) -> None:
        self.home = home
        self.job = JobFolder(home, spec)
        self.inputs = inputs
        self._number: "str" = array["number"]
        self._besides: "str" = array["besides"]
        self._first: "int" = array["first"]
        # All inputs have ended before the last element may start, and then the scheduler starts it itself.
        last = min(array["first"] + array["count"], spec["group"]["elements"] - 1)
        self._left = list(range(array["first"] + 1, last + 1))
        self._refusals = 0

    def release(self) -> None:
        """Let the scheduler start those elements that find work by now."""
        if not self._left or os.path.exists(os.path.join(self.home, layout.CANCEL)):
            return
        self.inputs.look_again()
        due = [element for element in self._left if self.inputs.may_start(element)]
        self._left = self._left[len(due) :]
        if os.path.exists(os.path.join(layout.attempt_dir(self.home, 1), layout.OUTCOME)):
            return
        folder = os.path.join(self.home, layout.RELEASED)
        own = [element for element in due if _is_first(folder, element)]
        if not own:
            return
        tasks = [element - self._first for element in own]
        refusal = self.job.scheduler.release_elements(
            self._number, tasks, self._besides, self.job.spec.get("clusters") or ""
        )
        self._refusals = self._refusals + 1 if refusal else 0
        if refusal:
            # One that has started, as all inputs ended meanwhile, is refused too; a second time it is the scheduler.
            self._left = self._left if self._refusals < _REFUSALS else []
            message = "%s: the items of %s start when all inputs have ended" % (refusal, self.job.id)
            say(message)
            publish.replace(os.path.join(folder, str(own[0])), message.encode())


def _is_first(folder: str, element: int) -> bool:
    """Whether no other process has told the scheduler of this element, or will."""
    try:
        make_folder(folder)
        return publish.publish(folder, str(element), b"")
    except OSError:
        # The group was removed. Or the disk is full, and the element starts when all inputs have ended.
        return False
