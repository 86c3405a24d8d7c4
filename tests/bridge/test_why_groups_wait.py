"""A group whose elements wait in the queue of a machine: the list of jobs says why, as of a single call."""

from __future__ import annotations

import json
import os

import pytest

from tests.bridge.box import Box
from tests.bridge.test_giving_way import Cards
from tests.bridge.test_queue import all_cores, patient, running  # noqa: F401  # a fixture among them
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each test has a network namespace of its own")


class Waiting(Cards):
    """Items of which no element can begin yet."""

    def __init__(self, box: Box, resources: dict[str, int], elements: int = 1) -> None:
        super().__init__(box, 4, 2)
        spec = json.loads((self.folder / "spec.json").read_text())
        spec["group"].update(elements=elements)
        spec.update(queue_timeout_s=None, limits={})
        spec["resources"].update({"gpus": 0, **resources})
        (self.folder / "spec.json").write_text(json.dumps(spec))
        for number in range(1, elements + 1):
            assert self.start(number).wait(150) == 20, "it waits in the queue"

    def listed(self) -> tuple[str, str]:
        """Its state and what the list of jobs says of it."""
        return self.box.listed(self.folder.name)


@pytest.mark.parametrize("elements", [1, 2])
def test_a_group_that_waits_for_gpus_says_who_has_them(box: Box, elements: int):
    box.say(cards=1)
    running(box, box.job(1, 600))
    group = Waiting(box, {"gpus": 1}, elements)

    state, message = until(lambda: "held by" in (found := group.listed())[1] and found)

    assert state == "PENDING"
    assert message.startswith("0 of 4 ended; 1 of 1 GPUs held by ")


def test_a_group_that_waits_for_cores_says_so_and_what_changes(box: Box):
    held = box.mark(f"run/4242/aaaaaaaaaaaaaaaa/0/{all_cores()}/0")
    group = Waiting(box, {"cores": all_cores()})

    assert until(lambda: group.listed()[1].startswith(f"0 of 4 ended; cores held by 4242 ({all_cores()})"))

    held.close()
    until(lambda: group.items())
    assert group.listed()[0] == "RUNNING"
