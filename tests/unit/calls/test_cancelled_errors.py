"""Which error an `except` of the user's gets of a job that was withdrawn or stopped, wherever it waits for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest

from clusterfn.calls.job import Job, entry_of
from clusterfn.errors import Cancelled
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
