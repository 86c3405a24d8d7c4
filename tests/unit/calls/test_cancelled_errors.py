"""Which error and state a job ends with, whichever thread or outcome ends it, and wherever its end is waited for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from clusterfn import Cancelled, HostError, Job, ResultError
from tests.sent import prepared
from tests.unit.calls.groups import job
from tests.waiting import WAIT_S, stays


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
) -> None:
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
def test_a_job_that_asyncio_would_wait_for_without_end_is_rejected() -> None:
    _, waiting = job()

    with pytest.raises(TypeError, match="asyncio.ensure_future"):
        asyncio.run(with_wait(waiting))


def test_a_job_whose_value_cannot_be_pickled_has_returned_and_not_died() -> None:
    entry, returned = job()

    entry.settle({"kind": "result", "message": "its value cannot be pickled: result.lock"}, None)

    concurrent.futures.wait([returned], WAIT_S)
    assert isinstance(returned.exception(0), ResultError)
    assert returned.status == "RETURNED (its value cannot be pickled: result.lock)"


def test_who_follows_a_job_learns_that_another_thread_has_withdrawn_it() -> None:
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


def test_a_job_that_is_lost_in_the_moment_in_which_it_begins_ends_with_that_error() -> None:
    entry, lost = job(kind=SlowJob)
    error = HostError("the connection has ended", host="tensor01")

    entry.lose(error)  # in a thread of its own
    entry.set_state("RUNNING")

    assert lost.exception(WAIT_S) is error
    assert isinstance(lost, SlowJob) and lost.begun == 1


def test_a_call_that_takes_the_value_of_a_job_waits_though_a_display_shows_it() -> None:
    entry, shown = job()
    entry.listen(lambda kind, what: None)
    waiting = threading.Thread(target=prepared(print, (shown,), host="tensor01").inputs[0].source.await_end)
    waiting.start()
    stays(waiting.is_alive, 0.2)

    entry.lose(HostError("the connection has ended", host="tensor01"))
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
