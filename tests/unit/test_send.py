"""What is waited for when a program ends: an answer that is still to come."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from clusterfn import send
from clusterfn.errors import SubmitError


class Removal(Future):
    """The removal of a folder, as the host has not answered it yet."""

    def result(self, timeout: float | None = None) -> None:
        self.waited_s = timeout
        self.set_result(None)


@pytest.fixture
def tracker():
    removal = Removal()
    connection = SimpleNamespace(run=lambda argv: removal)
    session = SimpleNamespace(host=SimpleNamespace(name="cluster"))
    return SimpleNamespace(connection=connection, session=session, folder="/root/jobs/x", removal=removal)


def test_the_folder_of_a_refused_job_is_gone_before_the_program_ends(tracker):
    send._refused(SubmitError("sbatch refused"), tracker)

    send._finish_all()

    assert 0 < tracker.removal.waited_s <= 5
    assert send._unanswered == {}
