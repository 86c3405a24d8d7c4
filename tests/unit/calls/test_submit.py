"""What is waited for when a program ends: answers that are still to come, and what they lead to."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from clusterfn.calls import submit
from clusterfn.errors import SubmitError
from clusterfn.hosts import exit_flush


class Request(Future):
    """A request that the host answers when somebody waits for it."""

    waited_s: float | None = None

    def exception(self, timeout: float | None = None) -> None:
        self.waited_s = timeout
        self.set_result(None)


def refuse(tracker):
    submit.JobSubmission(tracker, SimpleNamespace(on_refused=print)).on_not_started(SubmitError("sbatch refused"))


@pytest.fixture
def tracker():
    removal = Request()
    connection = SimpleNamespace(run=lambda argv: removal)
    session = SimpleNamespace(host=SimpleNamespace(name="cluster"))
    known = {"connection": connection, "session": session, "folder": "/root/jobs/x", "sending": None}
    return SimpleNamespace(**known, removal=removal, end=lambda: None)


def test_the_folder_of_a_refused_job_is_gone_before_the_program_ends(tracker):
    refuse(tracker)

    exit_flush.finish_all()

    assert 0 < tracker.removal.waited_s <= 5
    assert exit_flush.unanswered == {}


def test_so_is_that_of_one_that_is_refused_while_the_program_ends(tracker):
    submission = Request()
    submission.add_done_callback(lambda _: refuse(tracker))
    exit_flush.await_at_exit(submission)

    exit_flush.finish_all()

    assert tracker.removal.waited_s is not None
    assert exit_flush.unanswered == {}
