"""Submissions that a scheduler does not take for now: they wait in one line for each host, and say so on the host."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge import layout
from clusterfn.calls import conclusion, submission_line
from clusterfn.calls.submission_line import PendingSubmission, Started, WaitingJob
from clusterfn.errors import SubmitError
from clusterfn.hosts import exit_flush, loop
from clusterfn.hosts.connection import Reply
from clusterfn.scheduler.base import Submission
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.samples import SLURM
from tests.turns import printed, settle

FULL = b"sbatch: error: AssocMaxSubmitJobLimit"
HOUR_S = 3600.0


class Site:
    """A host whose scheduler is full until `room` is set, and a clock that only the test moves."""

    is_connected = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scheduler, self.settings = Slurm(SLURM, "ada"), SLURM._replace(queue_timeout_s=None)
        self.connection = self
        self.room, self.now = False, 0.0
        self.sent: list[str] = []
        self.renewed: list[str] = []
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        monkeypatch.setattr(submission_line, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(submission_line, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": self._sleep}))

    async def _sleep(self, seconds: float, real: Any = asyncio.sleep) -> None:
        if not seconds:
            await real(0)
            return
        woken = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, woken))
        await woken

    def run(self, argv: Any, **_: Any) -> Reply[Any]:
        if argv[0] == "touch":
            self.renewed += argv[3:]
            return printed()
        self.sent.append(argv[0])
        return printed(b"77") if self.room else printed(b"", FULL, 1)

    def pass_(self, seconds: float) -> None:
        """Let so much time pass, a minute at a time."""
        until = self.now + seconds
        while self.now < until:
            self.now += 60.0
            loop.call(self._wake)
            settle()

    def _wake(self) -> None:
        due = [each for each in self._sleepers if each[0] <= self.now]
        self._sleepers = [each for each in self._sleepers if each not in due]
        for _, woken in due:
            woken.set_result(None)

    def submit(self, name: str, job: WaitingJob) -> PendingSubmission:
        note = f"/jobs/{name}/refused"
        sent = PendingSubmission(self, Submission("run", (name,), "/"), (), job, note)  # type: ignore[arg-type]
        sent.start()
        settle()
        return sent


class Waits(WaitingJob):
    """A job that waits in the line."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def refused_for_now(self, reason: str) -> None:
        self.told.append(reason)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def test_what_waits_is_renewed_on_the_host_before_others_stop_believing_it(site: Site) -> None:
    sent = [site.submit(name, Waits()) for name in ("first", "second", "third")]
    site.pass_(layout.REFUSED_FOR_S / 2)

    assert site.renewed.count("/jobs/first/refused") == site.renewed.count("/jobs/second/refused") >= 1
    assert len(site.renewed) < 10  # and not at each try

    site.room = True
    site.pass_(HOUR_S)
    assert [each.result(0) for each in sent] == [Started("77")] * 3
    assert site.sent[-3:] == ["first", "second", "third"]
    site.renewed.clear()
    site.pass_(HOUR_S)
    assert site.renewed == []


def test_the_scheduler_is_asked_less_and_less_often_while_it_takes_none(site: Site) -> None:
    site.submit("first", Waits())
    site.pass_(HOUR_S)
    often = len(site.sent)
    site.pass_(HOUR_S)

    assert len(site.sent) - often <= 60 < often + 10


REFUSALS = {"full": FULL, "its limit of time": b"sbatch: error: Requested time limit is invalid"}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_job_that_is_cancelled_before_its_refusal_comes_is_not_submitted_again(site: Site, refusal: bytes) -> None:
    late: Reply[Any] = Reply(lambda: None)
    site.run = lambda argv, **_: site.sent.append(argv[0]) or late  # type: ignore[method-assign]
    job = Waits()
    sent = site.submit("--time=61", job)

    sent.withdraw()
    settle()
    assert not sent.done()  # until it is known whether the scheduler has it
    late.resolve(SimpleNamespace(rc=1, out=b"", err=refusal))
    site.pass_(HOUR_S)

    assert sent.result(0) is None and site.sent == ["--time=61"] and job.told == []


def test_a_program_that_ends_does_not_take_a_refusal_for_a_missing_answer(site: Site) -> None:
    late: Reply[Any] = Reply(lambda: None)
    site.run = lambda *_, **__: late  # type: ignore[method-assign]
    job = Waits()
    sent = site.submit("first", job)
    assert len(exit_flush.unanswered) == 1

    late.resolve(SimpleNamespace(rc=1, out=b"", err=FULL))
    settle()

    assert job.told and not sent.done() and exit_flush.unanswered == {}
    sent.withdraw()
    settle()
    assert sent.done()


@pytest.mark.parametrize("what", ["refused_for_now", "is_wanted_now", "split"])
def test_a_job_that_fails_where_it_waits_ends_alone_and_the_others_are_submitted(site: Site, what: str) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("by zero")

    failing = type("Failing", (WaitingJob,), {what: fail})
    first, second = site.submit("first", failing()), site.submit("second", Waits())
    site.pass_(layout.REFUSED_FOR_S / 2)
    site.room = True
    site.pass_(HOUR_S)

    assert isinstance(first.exception(0), SubmitError) and "ZeroDivisionError" in str(first.exception(0))
    assert second.result(0) == Started("77")


class Here:
    """A host on this machine, which runs commands at once."""

    def run(self, argv: Any, **_: Any) -> Reply[Any]:
        done = subprocess.run(argv, capture_output=True)
        return printed(done.stdout, done.stderr, done.returncode)


@pytest.mark.parametrize(
    ("age_s", "is_given_up"), [(None, True), (0.0, False), (600.0, False), (layout.REFUSED_FOR_S + 60.0, True)]
)
def test_a_job_that_waits_in_another_program_is_given_up_once_that_is_silent(tmp_path, age_s, is_given_up):
    if age_s is not None:
        (tmp_path / layout.REFUSED).write_text("AssocMaxSubmitJobLimit")
        os.utime(tmp_path / layout.REFUSED, (time.time() - age_s,) * 2)
    waits = loop.start(conclusion.is_refused_elsewhere(Here(), str(tmp_path)))  # type: ignore[arg-type]

    assert waits.result(60) != is_given_up
