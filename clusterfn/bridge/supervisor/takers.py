"""Groups whose items start one by one as the values of a job appear: the job tells their scheduler, or their queue.

Such a group leaves a file in the folder of each job whose value one of its items takes. Where a scheduler has the
elements, they wait by its own option until all inputs have ended. The process that sees enough
inputs end lets an element start earlier, once. If the scheduler refuses, the element starts as without it.
"""

import os

from ..fast_start import dumps, suppress
from ..layout import CANCEL, OUTCOME, RELEASED, TAKERS, attempt_dir, job_dir
from . import publish
from .attempt import make_folder
from .dependencies import Dependencies
from .item_inputs import item_inputs_of
from .job import WHOLE, DamagedFile, JobFolder, parse_record, read_spec
from .verdict import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .item_inputs import ItemInputs
    from .spec import Spec

_REFUSALS = 2


def register(root: str, group: str, producers: "list[str]", array: "Optional[dict[str, Any]]" = None) -> None:
    """Leave a file with these jobs: a group takes their values, and its items start one by one.

    Args:
        array: The scheduler's number of an array of its elements, how many elements come before it, how many it has,
            and what they wait for in addition: `number`, `first`, `count`, `besides`. None in our own queue.
    """
    name = group if array is None else "%s.%s" % (group, array["number"])
    for job in producers:
        folder = os.path.join(job_dir(root, job), TAKERS)
        # The job is not on the host or the disk is full. The group starts when all have ended.
        with suppress(OSError):
            make_folder(folder)
            publish.replace(os.path.join(folder, name), dumps(array or {}).encode())


def register_array(home: str, number: str, first: str, count: str, besides: str) -> int:
    """Register an array of a group's elements with the jobs whose values its items take, and start what can run."""
    job = JobFolder(home)
    inputs = item_inputs_of(job.home, job.spec, Dependencies(job.root))
    if inputs is not None and number.isdecimal():
        array = {"number": number, "first": int(first), "count": int(count), "besides": besides}
        register(job.root, job.id, inputs.producers(), array)
        _Array(job.home, job.spec, array, inputs).release()
    return 0


_ARRAY = {"number": str, "besides": str, "first": WHOLE, "count": WHOLE}


class Takers:
    """The groups that take the value of a job, or of its items, one by one.

    Args:
        job: Whose value they take.
    """

    def __init__(self, job: JobFolder) -> None:
        self.job = job
        self._folder = os.path.join(job.home, TAKERS)
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
        home = job_dir(self.job.root, name.partition(".")[0])
        try:
            array = parse_record(publish.read(self._folder, name), _ARRAY, TAKERS)
            spec = read_spec(home)
            inputs = item_inputs_of(home, spec, Dependencies(self.job.root))
            return None if inputs is None else _Array(home, spec, array, inputs)
        except (OSError, DamagedFile):
            return None


class _Array:
    """An array of a group's elements at a scheduler."""

    def __init__(self, home: str, spec: "Spec", array: "dict[str, Any]", inputs: "ItemInputs") -> None:
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
        if not self._left or os.path.exists(os.path.join(self.home, CANCEL)):
            return
        self.inputs.look_again()
        due = [element for element in self._left if self.inputs.may_start(element)]
        self._left = self._left[len(due) :]
        if os.path.exists(os.path.join(attempt_dir(self.home, 1), OUTCOME)):
            return
        folder = os.path.join(self.home, RELEASED)
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
