"""What several threads report of one job at once."""

from __future__ import annotations

import threading
import time
from typing import Any
from unittest.mock import Mock

from clusterfn.bridge.job_states import RUNNING
from clusterfn.calls.job import Job, entry_of
from clusterfn.errors import HostError
from clusterfn.packing.dependencies import reference_of
from tests.waiting import WAIT_S


class SlowJob(Job[Any]):
    """A job whose threads meet where it begins."""

    begun = 0

    def set_running_or_notify_cancel(self) -> bool:
        self.begun += 1
        time.sleep(0.1)
        return super().set_running_or_notify_cancel()


def made() -> SlowJob:
    return SlowJob("7f3a" * 4, "f", "box", "/r/jobs/7f3a", Mock())


def test_a_job_that_is_lost_in_the_moment_in_which_it_begins_ends_with_that_error() -> None:
    job, lost = made(), HostError("the connection has ended", host="box")

    entry_of(job).lose(lost)  # in a thread of its own
    entry_of(job).set_state(RUNNING)

    assert job.exception(WAIT_S) is lost
    assert job.begun == 1


def test_a_call_that_takes_the_value_of_a_job_waits_though_a_display_shows_it() -> None:
    job = made()
    entry_of(job).listen(lambda kind, what: None)
    waiting = threading.Thread(target=reference_of(job).source.await_end)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()

    entry_of(job).lose(HostError("the connection has ended", host="box"))
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
