"""Which of many jobs are followed."""

from __future__ import annotations

import pytest

from clusterfn.hosts import host_state
from clusterfn.hosts.host_state import FollowWindow


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> FollowWindow[int]:
    monkeypatch.setattr(host_state, "MOST_FOLLOWED", 3)
    return FollowWindow()


def test_the_oldest_are_followed_and_the_next_as_those_end(window: FollowWindow[int]):
    assert [window.enter(job) for job in range(6)] == [True, True, True, False, False, False]

    assert [window.leave(job) for job in (1, 0)] == [[3], [4]]


def test_jobs_that_begin_ahead_of_older_ones_take_no_place_from_them(window: FollowWindow[int]):
    for job in range(9):
        window.enter(job)

    assert [window.hurry(job) for job in (8, 7, 6, 6)] == [True, True, True, False]
    assert [window.leave(job) for job in (0, 1, 2)] == [[3], [4], [5]]
    assert window.leave(7) == []
