"""Items that start as their inputs end, in the queue of a machine: they hold nothing while they wait."""

from __future__ import annotations

import json
import os

import pytest

from tests.bridge.box import Box
from tests.bridge.group import once
from tests.bridge.test_giving_way import Cards, cards_held
from tests.bridge.test_queue import patient, running  # noqa: F401  # a fixture
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each test has a network namespace of its own")


class Taking(Cards):
    """Items of which each takes the same item of another group."""

    def __init__(self, box: Box, inputs: Cards, count: int, elements: int) -> None:
        super().__init__(box, count, 2)
        job = inputs.folder.name
        spec = json.loads((self.folder / "spec.json").read_text())
        spec["after"] = {job: {"name": "train", "items": list(range(count))}}
        spec["group"].update(block=1, elements=elements)
        spec["queue_timeout_s"] = None
        (self.folder / "spec.json").write_text(json.dumps(spec))
        told = {"all": [], "items": [[[job, index]] for index in range(count)]}
        (self.folder / "item_inputs.json").write_text(json.dumps(told))
        self.label = f"train ({job[:4]})"
        for element in (self.start(number) for number in range(1, elements + 1)):
            assert element.wait(150) == 20, "it waits in the queue"

    def tickets(self) -> set[int]:
        """The elements that wait."""
        names = (name.partition(".") for name in self.box.tickets())
        return {int(element) for job, _, element in names if job == self.folder.name}

    def reasons(self) -> set[str]:
        """What they wait for."""
        return {line["reason"] for line in self.box.status() if line["job"].startswith(self.folder.name)}


def test_an_item_runs_when_its_input_has_ended_and_its_element_waits_again_without_gpus(patient: Box):  # noqa: F811
    patient.say(cards=2)
    trained = Cards(patient, 2, 1)
    trained.start_all(2)
    scored = Taking(patient, trained, 2, 2)
    until(lambda: scored.reasons() == {f"waiting for 2 of 2 items of {scored.label}"})

    trained.end(1)
    until(lambda: scored.items() == [1])
    assert trained.items() == [0, 1] and not (trained.folder / "attempts").exists(), "its item 0 still runs"
    assert cards_held(patient) == 2 and len(scored.tickets()) == 1, "no element came for the other item"

    scored.end(1)
    until(lambda: scored.tickets() == {1, 2} and cards_held(patient) == 1)
    until(lambda: scored.reasons() == {f"waiting for 1 of 2 items of {scored.label}"})
    trained.end(0)
    until(lambda: scored.items() == [0, 1])
    scored.end(0)
    assert scored.message() == "2 of 2 ended: 2 returned" and once(scored, 2)
    until(lambda: not patient.tickets())


def test_two_groups_that_share_one_gpu_both_end(box: Box):
    box.say(cards=1)
    trained = Cards(box, 3, 1)
    trained.start_all(1)
    scored = Taking(box, trained, 3, 2)

    trained.end(0)
    until(lambda: trained.items() == [0, 1])
    assert scored.items() == [] and cards_held(box) == 1
    trained.end(1, 2)
    scored.end(0, 1, 2)
    assert trained.message() == "3 of 3 ended: 3 returned"
    assert scored.message() == "3 of 3 ended: 3 returned" and once(scored, 3)
    assert not any(line["event"] == "withdrawn" for line in box.holds())


def test_a_job_that_waits_for_an_input_takes_no_turn_from_the_next_one(box: Box):
    producer = running(box, box.job(0, 600))
    taker, other = box.job(0, after={producer.id: {"name": "f", "items": None}}), box.job(0)
    box.queued(taker)
    until(lambda: box.reason(taker).startswith("waiting for"))

    assert box.start(other).wait(150) == 0, "it starts at once, without a ticket"
    assert box.tickets() == {taker.id}
