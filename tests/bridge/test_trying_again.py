"""An element whose supervisor died tries again, and must wait for a card that a stranger has taken meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.bridge.box import Box
from tests.bridge.test_giving_way import Cards
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: each test has a network namespace of its own")


def waits_for_a_stranger(box: Box) -> tuple[Cards, subprocess.Popen[bytes]]:
    """An element with an item that had begun, and its script; the stranger has its only card."""
    box.say(cards=1)
    group = Cards(box, 2, 2)
    (script,) = group.start_all(1)
    box.say(cards=1, used={"0": 812})
    looks = box.looks()
    os.kill(supervisor(script), signal.SIGKILL)
    until(lambda: box.looks() > looks)
    return group, script


def supervisor(script: subprocess.Popen[bytes]) -> int:
    """Its pid."""
    return int(Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text())


def test_it_goes_on_when_the_other_user_has_gone(box: Box):
    group, script = waits_for_a_stranger(box)

    box.say(cards=1)

    until(lambda: group.began(1))
    group.end(1)
    assert script.wait(150) == 0
    assert group.ends() == {0: ["lost"], 1: ["returned"]}


def test_it_can_be_stopped_meanwhile(box: Box):
    group, script = waits_for_a_stranger(box)

    (group.folder / "cancel").touch()

    assert script.wait(150) == 10
    assert group.kinds(1) == ["cancelled"] and group.items() == [0]


def test_it_can_be_asked_to_end_meanwhile(box: Box):
    group, script = waits_for_a_stranger(box)

    os.kill(supervisor(script), signal.SIGTERM)

    assert script.wait(150) == 10
    assert group.kinds(1) == ["lost"] and group.items() == [0]
