"""Waits: each call that waits for a host is in the table of them, and one that looks again says what it waits for."""

from __future__ import annotations

import inspect
import io
import sys
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from clusterfn import ClusterFunction, Executor, Job, JobGroup, Session
from clusterfn.api.actor import Actor
from clusterfn.calls import call
from clusterfn.cli.check import function
from clusterfn.cli.check.step import CheckState
from clusterfn.cli.submission import send
from clusterfn.config.spec import Host
from clusterfn.hosts import exit_flush, spoken_wait
from tests.fixtures.waiting_call import calls_on


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


def test_a_command_that_only_sends_a_job_says_that_its_scheduler_has_not_taken_it(monkeypatch):
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


def test_a_check_says_that_it_waits_for_the_scheduler_to_withdraw_its_job(monkeypatch, capsys):
    monkeypatch.setattr(call, "submit_call", lambda *_: Sent())
    session = Mock(scheduler=Mock(has_nodes=True, title="SLURM"))
    asked = [SimpleNamespace(rc=1, err=b"Unable to contact slurm controller"), SimpleNamespace(rc=0)]
    session.connection.run.return_value.result.side_effect = asked

    state = CheckState("lab8", timeout_s=0.0)
    state.host, state.host_state = Host("lab8", "", "slurm", ""), session

    with pytest.raises(function.StillWaiting):
        function.send_probe(len, state)

    said = "clusterfn: waiting for job 7f3a000000000000 of this check to end: it is PENDING since 14:03:11 (Priority)\n"
    assert capsys.readouterr().err.startswith(said)


def test_waits_for_answers_that_follow_each_other_are_one_silence(monkeypatch):
    now, due = [1e9], []
    monkeypatch.setattr(spoken_wait, "time", SimpleNamespace(monotonic=lambda: now[0]))

    for lasts_s, pause_s in [(0.04, 0.5), (0.0, 2.0), (0.0, 0.0)]:
        with spoken_wait.silence() as speak_after_s:
            due.append(round(speak_after_s, 2))
            now[0] += lasts_s
        now[0] += pause_s

    assert due == [0.05, 0.01, 0.05]


CALLS = calls_on("host", "", "")
AS_ANOTHER = {"group.cancel": "group.stop"}
FACTS = {
    "job": "id name host folder state status status_since reason notes since done running cancelled add_done_callback "
    "set_result set_exception set_running_or_notify_cancel",
    "group": "id name host hosts folder outputs_to done failed state states reason status label to_dataframe",
    "Session": "job",
    "f": "local on with_options options",
}
OF_EACH = pytest.mark.parametrize(
    ("name", "public"),
    [("job", Job), ("group", JobGroup), ("Session", Session), ("Executor", Executor), ("f", ClusterFunction)],
)


def asked_of(name: str, public: Any) -> set[str]:
    """The names of its methods that ask a host."""
    shown = public.__dir__(object.__new__(public))
    return {each for each in shown if not each.startswith("_")} - set(FACTS.get(name, "").split())


@OF_EACH
def test_every_method_that_asks_a_host_is_in_the_table(name: str, public: Any):
    made = tuple(call.replace("()", "") for call in CALLS)

    asked = {AS_ANOTHER.get(f"{name}.{each}", f"{name}.{each}") for each in asked_of(name, public)}
    assert [each for each in asked if not any(call.startswith(each) for call in made)] == []


@OF_EACH
def test_ctrl_c_in_every_method_that_asks_a_host_shows_no_frame_of_clusterfn(name: str, public: Any):
    assert [each for each in asked_of(name, public) if not hides_our_frames(inspect.getattr_static(public, each))] == []


@pytest.mark.parametrize("end", [Actor.__exit__, Executor.__exit__, Session.__exit__, Session.__aexit__])
def test_ctrl_c_at_the_end_of_a_block_shows_no_frame_of_clusterfn(end: object):
    assert hides_our_frames(end)


def hides_our_frames(method: Any) -> bool:
    """Whether it is a method, or a property, with the decorator `public_api`."""
    return "__tracebackhide__" in getattr(method, "fget", method).__code__.co_varnames
