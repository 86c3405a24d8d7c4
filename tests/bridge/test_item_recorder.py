"""Whether an element that takes over waits for the one before it, seen in the process of the test."""

from __future__ import annotations

import json

import pytest

from clusterfn.bridge.supervisor.attempt import Attempt
from clusterfn.bridge.supervisor.group import ItemRecorder
from clusterfn.bridge.supervisor.job import JobFolder
from tests.bridge.group import Group
from tests.waiting import until


@pytest.mark.parametrize(("how", "times"), [("conclude", 1), ("after", 0)])
def test_who_takes_over_waits_where_the_one_before_may_not_know_yet_that_it_is_over(bench, how, times):
    group = Group(bench, 3, 3, waiting=(1,))
    killed = group.start(1)
    until(lambda: group.began(1))
    killed.kill()
    killed.wait(150)
    lost = json.dumps({"kind": "lost", "message": "gone", "stage": "supervisor"})
    group.call(how, 1, *(["143"] if how == "after" else []), stdin=lost)

    teller = Counting(group, 2)

    assert list(teller.pulled()) == [0] and list(teller.left(0)) == [2]
    assert teller.waits == times


class Counting(ItemRecorder):
    """An element that counts how often it would wait."""

    def __init__(self, group: Group, number: int) -> None:
        job = JobFolder(str(group.folder_of(number)))
        attempt = Attempt.new(job)
        attempt.prepare()
        super().__init__(job, attempt, sync=False)
        self.waits = 0

    def settle(self) -> None:
        self.waits += 1
