"""Answers that come late, together or in another order, and the error and state that a job ends with."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from clusterfn import Cancelled, HostError, Job, ResultError
from clusterfn.bridge import layout
from clusterfn.errors import ClusterfnError, SubmitError
from clusterfn.hosts import exit_flush, loop, remote_files
from clusterfn.hosts.connection import Spawned
from tests.fakes.held_host import AGAIN, ENDED, Request, World, refused, said
from tests.golden.samples import BARE, SLURM
from tests.sent import prepared
from tests.unit.calls.groups import job
from tests.waiting import WAIT_S, stays, until

INVALID = said(err="sbatch: error: invalid partition specified: nosuch", rc=1)
FULL = said(err="sbatch: error: AssocMaxSubmitJobLimit", rc=1)


def asked(world: World, what: str) -> Request:
    """Return the open request of that kind, once there is one."""
    found: Request = until(lambda: next((r for r in list(world.host.held.open.values()) if r.what == what), None))
    return found


def spawned(patch: pytest.MonkeyPatch) -> tuple[World, str, object]:
    return World(BARE, patch), "spawn", refused("denied", "Permission denied")


def submitted(patch: pytest.MonkeyPatch) -> tuple[World, str, object]:
    return World(SLURM, patch), "sbatch", INVALID


def submitted_again(patch: pytest.MonkeyPatch) -> tuple[World, str, object]:
    world = World(SLURM, patch)
    world.answer(asked(world, "sbatch"), FULL)
    world.settle()
    world.finish_pauses()
    return world, "sbatch", INVALID


@pytest.mark.parametrize("submit", [spawned, submitted, submitted_again])
def test_a_program_that_ends_while_a_call_is_submitted_waits_for_what_the_answer_leads_to(
    submit: Callable[[pytest.MonkeyPatch], tuple[World, str, object]], monkeypatch
):
    monkeypatch.setattr(remote_files, "REMOVAL_TIMEOUT_S", WAIT_S)
    world, what, answer = submit(monkeypatch)
    ends, waits = threading.Event(), []

    def host() -> None:
        world.answer(asked(world, what), answer)
        removal = asked(world, "sh")  # of its folder
        waits.append(not ends.wait(0.2))
        world.answer(removal, said())

    answers = threading.Timer(0.2, host)
    answers.start()
    exit_flush.finish_all()
    ends.set()
    answers.join(WAIT_S)
    world.lose()

    assert waits == [True]


@pytest.mark.parametrize(("outcome", "error"), [(ENDED, Cancelled), (AGAIN, HostError)])
def test_an_outcome_that_has_come_counts_although_its_connection_is_lost_before_it_is_taken(
    outcome: bytes, error: type[ClusterfnError], monkeypatch
):
    world, gate = World(BARE, monkeypatch), threading.Event()
    world.answer(asked(world, "spawn"), Spawned(5, 1))
    world.settle()
    loop.call(gate.wait, WAIT_S)  # the loop has much to do
    world.answer(asked(world, "follow"), outcome)
    world.lose()
    gate.set()
    world.settle()

    assert isinstance(world.job.exception(WAIT_S), error)
    assert world.left == []


@pytest.mark.parametrize(
    ("kind", "is_believed"), [(layout.PAYLOAD_BROKEN, False), (layout.ENVIRONMENT, False), (layout.EXITED, True)]
)
def test_what_was_damaged_on_the_host_is_sent_again_with_the_next_job(kind: str, is_believed: bool, monkeypatch):
    world = World(SLURM, monkeypatch)

    world.answer(asked(world, "follow"), json.dumps({"kind": kind, "message": "the blob a was altered"}).encode())
    world.settle()
    world.lose()
    world.settle()

    contents: Any = world.host.contents
    assert contents.distrust.called != is_believed


def test_a_job_that_its_scheduler_never_took_leaves_no_folder(monkeypatch):
    world = World(SLURM, monkeypatch)
    world.answer(asked(world, "sbatch"), said(rc=0))  # no number: it may have been taken
    world.settle()

    never = {"kind": layout.LOST, "stage": "submit", "message": "SLURM does not know the job"}
    world.answer(asked(world, "follow"), json.dumps(never).encode())
    world.settle()
    open_requests = [each.what for each in world.host.held.open.values()]
    world.lose()
    world.settle()

    assert isinstance(world.job.exception(0), SubmitError)
    assert open_requests[-2:] == ["scancel", "sh"], "sh removes it"


@pytest.mark.parametrize(
    ("stage", "is_chosen_again"), [(layout.GPU_STAGE, True), ("environment", True), ("start", False)]
)
def test_an_environment_that_does_not_fit_is_given_up_before_its_job_has_the_error(stage, is_chosen_again, monkeypatch):
    world, seen = World(SLURM, monkeypatch), []
    host: Any = world.host
    host.environments = Mock()
    world.job.add_done_callback(lambda _: seen.append(host.environments.forget.called))

    ended = {"kind": layout.ENVIRONMENT, "stage": stage, "message": "PyTorch does not run on the GPUs of n1"}
    world.answer(asked(world, "follow"), json.dumps(ended).encode())
    world.settle()
    world.lose()
    world.settle()

    assert seen == [is_chosen_again]


async def in_loop(job: Job[Any]) -> Any:
    return job.result(WAIT_S)


async def by_await(job: Job[Any]) -> Any:
    return await job


WAYS: dict[str, Callable[[Job[Any]], Any]] = {
    "in a thread": lambda job: job.result(WAIT_S),
    "in a running loop": lambda job: asyncio.run(in_loop(job)),
    "by await": lambda job: asyncio.run(by_await(job)),
}


@pytest.mark.parametrize("is_fetched_apart", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_job_raises_the_same_error_everywhere_and_a_withdrawn_one_that_of_its_kind_of_future(
    way: str, is_fetched_apart: bool
):
    (_, withdrawn), (entry, stopped) = job("7f3a", is_fetched_apart), job("90aa", is_fetched_apart)
    withdrawn.cancel()
    entry.fail(Cancelled("it was stopped", host="hpc"))

    with pytest.raises(asyncio.CancelledError if way == "by await" else concurrent.futures.CancelledError) as caught:
        WAYS[way](withdrawn)
    assert not isinstance(caught.value, Cancelled)
    with pytest.raises(Cancelled):
        WAYS[way](stopped)


async def with_wait(job: Job[Any]) -> Any:
    return await asyncio.wait([job], timeout=0.1)  # type: ignore[type-var]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.wait() awaits jobs as gather() does")
def test_a_job_that_asyncio_would_wait_for_without_end_is_rejected():
    _, waiting = job()

    with pytest.raises(TypeError, match="asyncio.ensure_future"):
        asyncio.run(with_wait(waiting))


def test_a_job_whose_value_cannot_be_pickled_has_returned_and_not_died():
    entry, returned = job()

    entry.settle({"kind": "result", "message": "its value cannot be pickled: result.lock"}, None)

    concurrent.futures.wait([returned], WAIT_S)
    assert isinstance(returned.exception(0), ResultError)
    assert returned.status == "RETURNED (its value cannot be pickled: result.lock)"


def test_who_follows_a_job_learns_that_another_thread_has_withdrawn_it():
    entry, withdrawn = job()
    told: list[str] = []
    entry.listen(lambda kind, _: told.append(kind))

    assert withdrawn.cancel() and told[-1] == "done"


class SlowJob(Job[Any]):
    """A job whose threads meet where it begins."""

    begun = 0

    def set_running_or_notify_cancel(self) -> bool:
        self.begun += 1
        time.sleep(0.1)
        return super().set_running_or_notify_cancel()


def test_a_job_that_is_lost_in_the_moment_in_which_it_begins_ends_with_that_error():
    entry, lost = job(kind=SlowJob)
    error = HostError("the connection has ended", host="tensor01")

    entry.lose(error)  # in a thread of its own
    entry.set_state("RUNNING")

    assert lost.exception(WAIT_S) is error
    assert isinstance(lost, SlowJob) and lost.begun == 1


def test_a_call_that_takes_the_value_of_a_job_waits_though_a_display_shows_it():
    entry, shown = job()
    entry.listen(lambda kind, what: None)
    waiting = threading.Thread(target=prepared(print, (shown,), host="tensor01").inputs[0].source.await_end)
    waiting.start()
    stays(waiting.is_alive, 0.2)

    entry.lose(HostError("the connection has ended", host="tensor01"))
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
