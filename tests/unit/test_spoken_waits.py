"""Waits that look again and again say what they wait for, as those for a single answer do."""

from __future__ import annotations

import io
import sys
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from clusterfn.calls import call
from clusterfn.cli.check import function
from clusterfn.cli.submission import send
from clusterfn.config.options import parse_options
from clusterfn.hosts import exit_flush, spoken_wait


class Sent(Future[int]):
    """A job that waits in a queue."""

    id, host, name, reason = "7f3a000000000000", "lab8", "train", "Priority"
    _run = property(lambda self: self)
    state, status_since, waits_here = "PENDING", "PENDING since 14:03:11 (Priority)", False

    def stop(self) -> None:
        self.set_result(0)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spoken_wait, "SPEAK_AFTER_S", 0.05)


def test_a_command_that_only_sends_a_job_says_that_its_scheduler_has_not_taken_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting: dict[Any, Any] = {Future(): 60.0}
    monkeypatch.setattr(exit_flush, "unanswered", waiting)

    class Answered(io.StringIO):
        """A stderr at whose first word the answer comes."""

        def write(self, text: str) -> int:
            waiting.clear()
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", stderr := Answered())

    send(Mock(submit=Sent), (), {})

    said = stderr.getvalue()
    assert said == "clusterfn: 7f3a is not submitted to lab8 yet: it is PENDING since 14:03:11 (Priority)\n"


def test_a_check_says_that_it_waits_for_the_scheduler_to_withdraw_its_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(call, "submit_call", lambda *_: Sent())
    session = Mock(scheduler=Mock(has_nodes=True, title="SLURM"))
    asked = [SimpleNamespace(rc=1, err=b"Unable to contact slurm controller"), SimpleNamespace(rc=0)]
    session.connection.run.return_value.result.side_effect = asked

    with pytest.raises(function.StillWaiting):
        function.send_probe(len, parse_options({}), Mock(), session, print, 0.0)

    said = "clusterfn: waiting for job 7f3a000000000000 of this check to end: it is PENDING since 14:03:11 (Priority)\n"
    assert capsys.readouterr().err.startswith(said)
