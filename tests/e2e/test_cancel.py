"""What `cancel()` answers: True is withdrawn, False is one that runs or has ended, as concurrent.futures has it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from clusterfn import Cancelled, Job, Session
from clusterfn.calls.job import withdraw
from tests.e2e.round_trips import behind
from tests.waiting import until

pytestmark = [pytest.mark.lab]
_ONE_WAY_S = 0.4
_BY_FILES = bytes(400_000)  # more than goes through the stream of a session


def test_a_call_that_arrived_and_ran_while_it_was_cancelled_has_its_value(lab: Any, lab_root: Path) -> None:
    with behind(lab, _ONE_WAY_S, lab_root.name), Session("new0") as session:
        session.call(len, b"")
        job = session.submit(len, _BY_FILES)
        until(lambda: [*lab_root.glob("jobs/*/calls/2/outcome.json")])  # and the host's word of that is on its way

        assert not withdraw(job), "the host has begun it"
        assert job.result(150) == len(_BY_FILES) and not job.cancel()
        assert session.call(len, b"next") == 4, "no number of a call is left out"


@pytest.mark.parametrize(
    "data", [b"small", pytest.param(_BY_FILES, marks=pytest.mark.long)], ids=["streamed", "by files"]
)
def test_calls_that_are_cancelled_at_any_moment_are_withdrawn_or_stopped_or_have_their_value(
    lab: Any, lab_root: Path, data: bytes
) -> None:
    with behind(lab, 0.02, lab_root.name), Session("new0", workers=2, cores=2) as session:
        session.call(len, b"")
        told = [cancelled_after(session.submit(len, data), 0.006 * number) for number in range(20)]

    assert [each for each in told if each not in ("withdrawn", "stopped", "ran")] == []


def cancelled_after(job: Job[int], delay_s: float) -> str:
    """What became of a call that another thread cancels meanwhile."""
    answers: list[bool] = []
    other = threading.Timer(delay_s, lambda: answers.append(job.cancel()))
    other.start()
    other.join(150)
    try:
        job.result(150)
        what = "ran"
    except BaseException as error:
        what = "withdrawn" if job.cancelled() else "stopped" if isinstance(error, Cancelled) else repr(error)
    # A call that has just ended by itself may have been asked to end.
    return what if what == "ran" or answers == [True] else f"cancel() said {answers}, and then it was {what}"
