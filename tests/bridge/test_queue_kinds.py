"""The queue of a machine with cards of several kinds: who waits for one kind keeps no other from anybody."""

from __future__ import annotations

import os
import re

import pytest

from tests.bridge.box import Box
from tests.bridge.test_queue import ended, group_of, let_go, running
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each test has a network namespace of its own")

BOTH = ("NVIDIA A100-SXM4-80GB", "NVIDIA RTX A6000")


def test_a_job_that_waits_for_one_kind_of_gpu_keeps_no_other_kind_from_ones_own_jobs(box: Box):
    box.say(kinds=BOTH)
    holder, waiting = running(box, box.job(1, 600, kind="a100")), box.job(1, kind="a100")
    other = box.job(1, kind="a6000")
    box.queued(waiting)

    box.start(other)

    assert ended(other) == ["returned"]
    assert other.value() == "1" and not waiting.has_outcome()
    let_go(holder)
    assert ended(waiting) == ["returned"]
    assert waiting.value() == "0"


def test_a_job_of_another_user_that_waits_for_one_kind_of_gpu_keeps_that_kind_alone(box: Box):
    box.say(kinds=BOTH)
    held = box.waits(2, kind="a100")
    any_card, mine = box.job(1), box.job(1, kind="a100")

    box.start(any_card)
    box.queued(mine)

    assert ended(any_card) == ["returned"]
    assert any_card.value() == "1"
    kept = "1 of 1 GPUs reserved for 4242's earlier 2-GPU job; waiting for 1; 1 job before it; 4242 is next"
    # What it said first may count the other job.
    until(lambda: box.reason(mine).startswith(kept))
    held.close()
    assert ended(mine) == ["returned"]


def test_a_job_that_is_content_with_any_gpu_keeps_none_that_another_needs_more(box: Box):
    box.say(kinds=BOTH)
    held = box.waits(1)
    mine = box.job(1, kind="a100")

    assert box.start(mine).wait(150) == 0

    assert mine.value() == "0"
    held.close()


def test_a_group_has_all_gpus_of_its_kind_while_another_user_waits_for_another(box: Box):
    box.say(cards=4, kinds=BOTH)
    group = group_of(box, 2, (0, 1), "a6000")
    first = group.start(1, PATH=box.path)
    until(lambda: group.began(0) or group.began(1))
    held = box.waits(1, 99999999999999, kind="a100")

    second = group.start(2, PATH=box.path)

    until(lambda: group.began(0) and group.began(1))
    group.go()
    assert [first.wait(150), second.wait(150)] == [0, 0]
    held.close()


def test_a_job_says_which_kind_of_gpu_it_waits_for(box: Box):
    box.say(kinds=BOTH)
    running(box, box.job(1, 600, kind="a100"))
    waiting = box.job(1, kind="A100")
    waiting_large = box.bench.job(
        "def f():\n    pass\n", resources={"gpus": 1, "gpu_type": "a100", "gpu_memory_bytes": 40 << 30}
    )

    box.queued(waiting)
    box.queued(waiting_large)

    ends = until(lambda: two([name for name in box.apart.names() if name.startswith("wait/")]))
    assert [re.sub("~[^/]*", "", name).split("/", 4)[4] for name in ends] == [
        f"1/1/0/{waiting.id}/a100/0",
        f"1/1/0/{waiting_large.id}/a100/40960",
    ]


def two(names: list[str]) -> list[str]:
    """They, the older first, once both are there."""
    return sorted(names, key=lambda name: int(name.split("/")[2])) if len(names) == 2 else []
