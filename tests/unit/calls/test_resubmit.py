"""Submissions that a scheduler does not take for now: they wait in one line for each host, and say so on the host."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge import layout
from clusterfn.calls import liveness, resubmit
from clusterfn.calls.resubmit import PendingSubmission, SubmissionListener
from clusterfn.errors import SubmitError
from clusterfn.hosts import exit_flush
from clusterfn.hosts.connection import Reply
from clusterfn.scheduler.base import Submission
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.samples import SLURM

FULL = (1, b"", b"sbatch: error: AssocMaxSubmitJobLimit")
HOUR_S = 3600.0


def answered(rc: int, out: bytes = b"", err: bytes = b"") -> Reply[Any]:
    reply: Reply[Any] = Reply(lambda: None)
    reply.resolve(SimpleNamespace(rc=rc, out=out, err=err))
    return reply


class Site:
    """A host whose scheduler is full until `room` is set, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.scheduler, self.host = Slurm(SLURM, "ada"), SLURM._replace(queue_timeout_s=None)
        self.connection = self
        self.room, self.now = False, 0.0
        self.sent: list[str] = []
        self.renewed: list[str] = []

    def run(self, argv: Any, **_: Any) -> Reply[Any]:
        if argv[0] == "touch":
            self.renewed += argv[3:]
            return answered(0)
        self.sent.append(argv[0])
        return answered(0, b"77") if self.room else answered(*FULL)

    def pass_(self, seconds: float) -> None:
        """Let so much time pass, a minute at a time, and send what is due."""
        until = self.now + seconds
        while self.now < until:
            self.now += 60.0
            resubmit.send_due()

    def submit(self, name: str, on: SubmissionListener) -> PendingSubmission:
        sent = PendingSubmission(self, Submission("run", (name,), "/"), (), on)  # type: ignore[arg-type]
        sent.start()
        return sent


class Waits(SubmissionListener):
    """A job that waits in the line."""

    note = ""

    def __init__(self, note: str = "", fails: Exception | None = None) -> None:
        self.note, self.fails = note, fails  # type: ignore[misc]
        self.told: list[str] = []

    def on_refused_for_now(self, reason: str) -> None:
        self.told.append(reason)

    def on_started(self, scheduler_id: str, doubt: SubmitError | None) -> None:
        self.told.append(scheduler_id)
        if self.fails is not None:
            raise self.fails


class NoTimer:
    """As in an interpreter that exits: `send_due` does what the timer would have done."""

    daemon = False

    def __init__(self, *_: object) -> None: ...

    def start(self) -> None:
        raise RuntimeError("can't start new thread")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site()
    monkeypatch.setattr(resubmit, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(resubmit.threading, "Timer", NoTimer)
    return made


def test_what_waits_is_renewed_on_the_host_before_others_stop_believing_it(site: Site) -> None:
    first, second, builder = Waits("/jobs/1/refused"), Waits("/jobs/2/refused"), Waits()
    sent = [site.submit(name, on) for name, on in (("first", first), ("second", second), ("builder", builder))]
    site.pass_(layout.REFUSED_FOR_S / 2)

    assert site.renewed.count("/jobs/1/refused") == site.renewed.count("/jobs/2/refused") >= 1
    assert len(site.renewed) < 10  # and not at each try

    site.room = True
    site.pass_(HOUR_S)
    assert all(each.done() for each in sent)
    site.renewed.clear()
    site.pass_(HOUR_S)
    assert site.renewed == []


def test_a_listener_that_fails_holds_up_none_of_those_that_wait_behind_it(site: Site) -> None:
    first, second = Waits(fails=RuntimeError("of a callback")), Waits()
    sent = [site.submit("first", first), site.submit("second", second)]

    site.room = True
    site.pass_(HOUR_S)

    assert [each.done() for each in sent] == [True, True]
    assert (first.told[-1], second.told[-1]) == ("77", "77")
    assert site.sent[-2:] == ["first", "second"]


REFUSALS = {"full": FULL[2], "its limit of time": b"sbatch: error: Requested time limit is invalid"}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_job_that_is_cancelled_before_its_refusal_comes_is_not_submitted_again(site: Site, refusal: bytes) -> None:
    late: Reply[Any] = Reply(lambda: None)
    site.run = lambda argv, **_: site.sent.append(argv[0]) or late  # type: ignore[method-assign]
    job = Waits()
    sent = site.submit("--time=61", job)

    sent.withdraw()
    assert not sent.done()  # until it is known whether the scheduler has it
    late.resolve(SimpleNamespace(rc=1, out=b"", err=refusal))
    site.pass_(HOUR_S)

    assert sent.done() and site.sent == ["--time=61"] and job.told == []


def test_a_program_that_ends_does_not_take_a_refusal_for_a_missing_answer(site: Site) -> None:
    late: Reply[Any] = Reply(lambda: None)
    site.run = lambda *_, **__: late  # type: ignore[method-assign]
    job = Waits()
    sent = site.submit("first", job)
    assert list(exit_flush.unanswered) == [late]

    late.resolve(SimpleNamespace(rc=1, out=b"", err=FULL[2]))

    assert job.told and not sent.done() and exit_flush.unanswered == {}
    sent.withdraw()


class Here:
    """A host on this machine, which runs commands at once."""

    def run(self, argv: Any, **_: Any) -> Reply[Any]:
        done = subprocess.run(argv, capture_output=True)
        return answered(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("age_s", "is_given_up"), [(None, True), (0.0, False), (600.0, False), (layout.REFUSED_FOR_S + 60.0, True)]
)
def test_a_job_that_waits_in_another_program_is_given_up_once_that_is_silent(
    tmp_path: Path, age_s: float | None, is_given_up: bool
) -> None:
    if age_s is not None:
        (tmp_path / layout.REFUSED).write_text("AssocMaxSubmitJobLimit")
        os.utime(tmp_path / layout.REFUSED, (time.time() - age_s,) * 2)
    given_up: list[bool] = []
    use: Callable[[], object] = lambda: given_up.append(True)  # noqa: E731

    liveness.unless_refused(Here(), str(tmp_path), use)  # type: ignore[arg-type]

    assert bool(given_up) == is_given_up
