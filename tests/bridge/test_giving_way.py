"""A group gives cards to another user who waits, and has them again afterwards: its elements wait in the queue."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.bridge.box import Box, waiting_name
from tests.bridge.group import Group, once
from tests.bridge.host import clean_environ
from tests.bridge.test_queue import WAITS, all_cores
from tests.waiting import until

# Says that it began, and waits for a file of its own.
ITEM = """
def f(x):
    import os, time
    with open(os.path.join({folder!r}, "began-%d" % x), "a") as file:
        file.write("%d\\n" % os.getpid())
    while not os.path.exists(os.path.join({folder!r}, "go-%d" % x)):
        time.sleep(0.01)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each test has a network namespace of its own")


class Cards(Group):
    """Items that need a card each, or what is asked for, and end when they are told to."""

    def __init__(self, box: Box, count: int, chunk: int, **spec: Any) -> None:
        # no element is in the queue before it has begun: it must not end those that wait again
        spec = {"resources": {"gpus": 1}, **spec}
        super().__init__(box.bench, count, chunk, source=ITEM, queue_timeout_s=0.05, **spec)
        script = (self.folder / "job.sh").read_text().replace(str(self.folder), str(self.folder) + "/elements/$1")
        (self.folder / "job.sh").write_text(script.replace("'", '"'))
        self.box = box

    def start(self, number: int, **env: str) -> subprocess.Popen[bytes]:
        """The script of one element, as the agent starts it and the spooler again."""
        (self.folder / "elements" / str(number)).mkdir(parents=True)
        argv = ["/bin/sh", str(self.folder / "job.sh"), str(number)]
        env = clean_environ(PATH=self.box.path, **env)
        started = self.box.apart.inside(lambda: subprocess.Popen(argv, env=env, start_new_session=True))
        self.bench.started.append(started)
        return started

    def start_all(self, count: int) -> list[subprocess.Popen[bytes]]:
        """So many elements, once each runs an item."""
        started = [self.start(number) for number in range(1, count + 1)]
        until(lambda: len(self.items()) == count)
        return started

    def items(self) -> list[int]:
        """Those that have begun."""
        return [x for x in range(100) if self.began(x)]

    def end(self, *items: int) -> None:
        for x in items:
            (self.told / f"go-{x}").touch()

    def message(self) -> str:
        """How the group ended, once it has."""
        until((self.folder / "attempts" / "1" / "outcome.json").exists)
        return self.outcome()["message"]

    def kinds(self, number: int) -> list[str]:
        """How the attempts of an element ended; "" for one that has not."""
        folder = self.folder / "elements" / str(number) / "attempts"
        ends = [folder / str(attempt) / "outcome.json" for attempt in range(1, 1 + len(list(folder.iterdir())))]
        return [json.loads(end.read_text())["kind"] if end.exists() else "" for end in ends]


def gone(elements: list[subprocess.Popen[bytes]]) -> list[int]:
    """The numbers of those whose process has ended."""
    return [number for number, element in enumerate(elements, 1) if element.poll() is not None]


def cards_held(box: Box) -> int:
    return len([name for name in box.apart.names() if name.startswith("gpu/")])


def now_ms() -> int:
    """Since the machine was started, as names have it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**6


def waits(box: Box, cards: int) -> contextlib.ExitStack:
    """Another user's job does, from now on, for so many cards."""
    return box.waits(cards, now_ms())


def test_a_group_has_all_gpus_again_when_nobody_else_waits_any_more(box: Box):
    box.say(cards=4)
    group = Cards(box, 8, 1)
    elements = group.start_all(4)

    with waits(box, 2):
        group.end(0, 1, 2, 3)
        until(lambda: len(group.items()) == 6 and len(gone(elements)) == 2)
        gave_way = gone(elements)
        assert [elements[number - 1].returncode for number in gave_way] == [WAITS, WAITS]
        assert cards_held(box) == 2 and len(group.items()) == 6
        assert box.tickets() == {f"{group.folder.name}.{number}" for number in gave_way}
        until(lambda: len(box.status()) == 2)
        assert all("reserved for 4242's earlier 2-GPU job" in line["reason"] for line in box.status()), box.status()
    until(lambda: len(group.items()) == 8)
    assert cards_held(box) == 4 and not box.tickets()

    group.end(4, 5, 6, 7)
    assert group.message() == "8 of 8 ended: 8 returned" and once(group, 8)
    until(lambda: [group.kinds(number) for number in gave_way] == [["preempted", "returned"]] * 2)


def test_who_gave_way_keeps_no_items_and_is_not_started_when_none_is_left(box: Box):
    group = Cards(box, 6, 3)
    elements = group.start_all(2)

    with waits(box, 1):
        group.end(0)
        (number,) = until(lambda: gone(elements))
        group.end(1, 2, 3, 4, 5)

        assert elements[2 - number].wait(150) == 0
        assert group.message() == "6 of 6 ended: 6 returned" and once(group, 6)
        until(lambda: not box.tickets() and not box.spoolers())
        assert len(box.order()) == 2


def test_who_gave_way_and_died_on_its_way_out_has_its_turn_though_the_spooler_had_started_it(box: Box):
    group = Cards(box, 4, 1)
    script = group.folder / "job.sh"
    script.write_text(script.read_text().replace("rc=$?\n", f"rc=$?\n[ $rc = {WAITS} ] && rc=137\n", 1))
    elements = [group.start(number, CLUSTERFN_TURN="1") for number in (1, 2)]
    until(lambda: len(group.items()) == 2)

    with waits(box, 1):
        group.end(0, 1)
        (number,) = until(lambda: gone(elements))
        assert group.kinds(number) == ["preempted"]
    until(lambda: len(group.items()) == 4)

    group.end(2, 3)
    assert group.message() == "4 of 4 ended: 4 returned"


def test_the_list_says_why_a_group_waits_whose_elements_all_wait_again(box: Box):
    group = Cards(box, 4, 1)
    elements = group.start_all(2)

    with waits(box, 1), contextlib.ExitStack() as more:
        group.end(0, 1)
        (number,) = until(lambda: gone(elements) if len(group.items()) == 3 else None)
        assert box.listed(group.folder.name) == ("RUNNING", "2 of 4 ended: 2 returned")

        more.enter_context(box.mark(waiting_name(4343, 1)))
        os.killpg(elements[2 - number].pid, signal.SIGKILL)
        elements[2 - number].wait(150)
        group.call("conclude", 3 - number, stdin=json.dumps({"kind": "lost", "message": "gone", "stage": "supervisor"}))
        told = until(lambda: told if "waiting for 1" in (told := box.listed(group.folder.name))[1] else None)
        assert told[0] == "PENDING" and told[1].startswith("2 of 4 ended: 2 returned; ")
    group.end(2, 3)
    until(lambda: len(group.ends()) == 4)


@pytest.mark.parametrize("gives_way", [True, False])
def test_an_element_without_gpus_gives_way_to_who_holds_less_of_the_machine_and_to_nobody_else(
    box: Box, gives_way: bool
):
    group = Cards(box, 3, 1, resources={"cores": all_cores()}, limits={})
    (element,) = group.start_all(1)
    theirs = 0 if gives_way else all_cores()

    with box.mark(f"run/4242/bbbbbbbbbbbbbbbb/0/{theirs}/0"), box.waits(0, now_ms()):
        group.end(0)
        if gives_way:
            assert element.wait(150) == WAITS
            assert box.tickets() == {f"{group.folder.name}.1"} and len(group.items()) == 1
            until(lambda: "1 job before it; 4242 is next" in str(box.status()))
        else:
            until(lambda: len(group.items()) == 2)
    group.end(1, 2)

    assert group.message() == "3 of 3 ended: 3 returned" and once(group, 3)
