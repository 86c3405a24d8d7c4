"""Wait for the values of other jobs: a job that takes them, and each element of a group whose items do.

A job that waits here may hold an allocation. So it begins only when its scheduler, or the queue, takes them for ended.
"""

import json
import os
import time

from .. import layout
from . import publish
from .dependencies import Dependencies, ended_by_scheduler, keep_exception, last_beat
from .job import DamagedFile, JobFolder, dependencies_of, describe_waiting, parse_record
from .text import portable
from .verdict import AttemptEnded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

    from .attempt import RunnableAttempt
    from .verdict import Verdict
    from .watch import EndWatch

_LOOK_S = 0.5
# It is a job, and the index of an item or null.
_TAKEN = (str, int, type(None))
_SHAPE = {"all": [[_TAKEN]], "items": [[[_TAKEN]]]}


def await_values(job: JobFolder, attempt: "RunnableAttempt", watch: "EndWatch") -> None:
    """Wait until no dependency is open, and write where their values lie into inputs.json of the attempt.

    A scheduler starts the job once they are over for it. Then an outcome comes late only from a slow file system.

    Raises:
        AttemptEnded: One of them has no value, or the job was ended while it waited.
    """
    found = Dependencies(job.root)
    wanted = dependencies_of(job.spec)
    reason = ""
    began = time.monotonic()
    open_ones = found.still_open(wanted)
    while open_ones:
        watch.look()
        silent_s = time.time() - max(last_beat(layout.job_dir(job.root, dependency.job)) for dependency in open_ones)
        if job.scheduler.has_nodes and min(time.monotonic() - began, silent_s) > layout.STALE_AFTER_S:
            listed = job.scheduler.listed_jobs(job.spec.get("clusters") or "")
            jobs = [dependency.job for dependency in open_ones]
            if listed is not None and not any(job_id in listed or found.is_refused(job_id) for job_id in jobs):
                break
            # The scheduler has it or does not answer. Its client may have started more of it.
            began = time.monotonic()
        if found.describe_open(wanted) != reason:
            reason = found.describe_open(wanted)
            attempt.wait(reason)
        time.sleep(_LOOK_S)
        found.look_again()
        open_ones = found.still_open(wanted)
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
    """The inputs of each item of a group."""

    def __init__(self, job: JobFolder) -> None:
        self._values = Dependencies(job.root)
        self._wanted = {dependency.job: dependency for dependency in dependencies_of(job.spec)}
        with open(os.path.join(job.home, layout.ITEM_INPUTS), "rb") as file:
            inputs = parse_record(file.read(), _SHAPE, layout.ITEM_INPUTS)
        self._of_all: "list[list[Any]]" = inputs["all"]
        self._of_items: "list[list[list[Any]]]" = inputs["items"]

    def failure(self, index: int) -> "Optional[Verdict]":
        """Return the verdict on an item, if a value that it takes will never exist."""
        items: "dict[str, Optional[set[int]]]" = {}
        for job, item in self._of_all + self._of_items[index]:
            before = items.setdefault(job, set())
            if item is None or before is None:
                items[job] = None
            else:
                before.add(item)
        return self._values.failure(
            [self._wanted[job]._replace(items=some and sorted(some)) for job, some in items.items()]
        )


def known_inputs(job: JobFolder) -> "Optional[ItemInputs]":
    """Return the inputs of a group's items; None if they have none, or these are not known."""
    if not job.spec.get("after"):
        return None
    try:
        return ItemInputs(job)
    except (OSError, DamagedFile):
        # The functions of the group may write into its folder.
        return None
