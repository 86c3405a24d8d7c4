"""Which error and state a job ends with, whichever thread or outcome ends it, and wherever its end is waited for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn import Cancelled, Job, ResultError
from clusterfn.calls.job import entry_of
from clusterfn.config.spec import ResultPolicy
from tests.fakes.taken import Taken
from tests.waiting import WAIT_S


class Following(Taken):
    """What follows a job that can be withdrawn."""

    def __init__(self, is_fetched_apart: bool) -> None:
        self.is_fetched_apart = is_fetched_apart

    def withdraw(self) -> bool:
        return True


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
    following: Any = Following(is_fetched_apart)
    withdrawn, stopped = (Job[Any](each * 4, "train", "hpc", "/jobs/1", following) for each in ("7f3a", "90aa"))
    withdrawn.cancel()
    entry_of(stopped).fail(Cancelled("it was stopped", host="hpc"))

    with pytest.raises(asyncio.CancelledError if way == "by await" else concurrent.futures.CancelledError) as caught:
        WAYS[way](withdrawn)
    assert not isinstance(caught.value, Cancelled)
    with pytest.raises(Cancelled):
        WAYS[way](stopped)


async def with_wait(job: Job[Any]) -> Any:
    return await asyncio.wait([job], timeout=0.1)  # type: ignore[type-var]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.wait() awaits jobs as gather() does")
def test_a_job_that_asyncio_would_wait_for_without_end_is_rejected() -> None:
    following: Any = Following(is_fetched_apart=False)
    job = Job[Any]("7f3a000011112222", "train", "hpc", "/jobs/1", following)

    with pytest.raises(TypeError, match="asyncio.wrap_future"):
        asyncio.run(with_wait(job))


def test_a_job_whose_value_cannot_be_pickled_has_returned_and_not_died() -> None:
    tracker: Any = SimpleNamespace(results=ResultPolicy(), is_fetched_apart=False, keeps=False)
    job: Job[Any] = Job("7f3a000011112222", "train", "tensor01", "/root/jobs/7f3a", tracker)

    entry_of(job).settle({"kind": "result", "message": "its value cannot be pickled: result.lock"}, None)

    concurrent.futures.wait([job], WAIT_S)
    assert isinstance(job.exception(0), ResultError)
    assert job.status == "RETURNED (its value cannot be pickled: result.lock)"


def test_who_follows_a_job_learns_that_another_thread_has_withdrawn_it() -> None:
    tracker: Any = SimpleNamespace(withdraw=lambda: True)
    job: Job[Any] = Job("7f3a000011112222", "train", "tensor01", "/root/jobs/7f3a", tracker)
    told: list[str] = []
    entry_of(job).listen(lambda kind, _: told.append(kind))

    assert job.cancel() and told[-1] == "done"


def test_a_dependent_and_the_failed_job_have_one_exception_whichever_outcome_comes_first() -> None:
    tracker: Any = SimpleNamespace(results=ResultPolicy(), is_fetched_apart=False, keeps=False)
    failed, dependent = (Job[Any](name * 16, name, "tensor01", f"/root/jobs/{name * 16}", tracker) for name in "ab")
    entry_of(dependent).inputs = {failed.id: failed}
    cause = {"kind": "walltime", "message": "over its time"}
    published = {"kind": "dependency", "message": "a failed", "cause": {**cause, "job": failed.id}}
    entry_of(dependent).settle(published, None)
    time.sleep(0.1)
    entry_of(failed).settle(cause, None)
    concurrent.futures.wait([dependent], WAIT_S)

    assert dependent.exception(0).__cause__ is failed.exception(0) is not None  # type: ignore[union-attr]
