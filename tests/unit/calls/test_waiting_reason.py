"""What a program is told of its own part in what a job waits for."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from clusterfn.calls.queue_tracker import QueueTracker


@pytest.mark.parametrize(
    ("is_this_machine", "pid", "named"),
    [
        (True, os.getpid(), f"this program, pid {os.getpid()}, ada"),
        (True, 1, "pid 1, ada"),
        (False, os.getpid(), f"pid {os.getpid()}, ada"),
    ],
    ids=["this program", "another one", "the same number on another machine"],
)
def test_a_job_that_waits_for_a_gpu_of_this_program_says_so(is_this_machine: bool, pid: int, named: str):
    host = SimpleNamespace(is_this_machine=is_this_machine)
    tracker = QueueTracker.__new__(QueueTracker)
    tracker.session = SimpleNamespace(host=host)  # type: ignore[assignment]
    tracker.queue_reason, tracker.other_reason = (
        f"1 in use without a lease: python3 (pid {pid}, ada); waiting for 1",
        "",
    )

    assert tracker.waiting_reason == f"1 in use without a lease: python3 ({named}); waiting for 1"
