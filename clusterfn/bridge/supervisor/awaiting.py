"""Wait in a job until the values exist that it takes, and say where they lie.

A job that waits here may hold an allocation. So it begins only when its scheduler, or the queue, takes them for ended.
"""

import time

from ..fast_start import dumps
from ..layout import DEPENDENCY, INPUTS, STALE_AFTER_S, VALUE, job_dir
from . import publish
from .dependencies import Dependencies, ended_by_scheduler, keep_exception, last_beat
from .job import dependencies_of, describe_waiting
from .text import portable
from .verdict import AttemptEnded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from .attempt import RunnableAttempt
    from .item_inputs import ItemInputs
    from .job import JobFolder
    from .watch import EndWatch

_LOOK_S = 0.5


def await_values(
    job: "JobFolder", attempt: "RunnableAttempt", watch: "EndWatch", inputs: "Optional[ItemInputs]" = None
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
        silent_s = time.time() - max(last_beat(job_dir(job.root, each.job)) for each in open_ones)
        if job.scheduler.has_nodes and min(time.monotonic() - began, silent_s) > STALE_AFTER_S:
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
        failed = refusal if refusal is not None and refusal.kind == DEPENDENCY else found.failure(wanted)
        if failed is None and open_ones:
            failed = ended_by_scheduler(open_ones[0], describe_waiting(open_ones))
        if failed is not None:
            raise AttemptEnded(keep_exception(failed, attempt.path(VALUE)))
    publish.replace(attempt.path(INPUTS), dumps(portable(found.places(wanted))).encode())
