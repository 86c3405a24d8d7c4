"""A cable of the lab can be pulled and plugged in, and nothing of it is left. The system's ssh only."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.lab import Cable, Lab, layout
from tests.lab.cable import is_laid
from tests.lab.processes import runs

pytestmark = pytest.mark.lab

CRASH = """
import os
from tests.lab import Lab
with Lab().cable() as cable:
    print(cable.name, *cable.pids(), flush=True)
    os.kill(os.getpid(), 9)
"""
Echo = subprocess.Popen[bytes]


@pytest.fixture
def cable(lab: Lab) -> Iterator[Cable]:
    with lab.cable() as laid:
        yield laid


@pytest.fixture
def echo(lab: Lab, cable: Cable) -> Iterator[Echo]:
    """A `cat` at the far end that has answered once."""
    argv = ["ssh", "-F", str(lab.ssh_config), cable.alias, "cat"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        say(process, b"a")
        assert heard(process, 150) == b"a"
        yield process
        process.kill()


def say(process: Echo, data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)


def heard(process: Echo, within_s: float) -> bytes:
    """What comes within that time; empty if nothing does."""
    assert process.stdout is not None
    return process.stdout.read(1) if select.select([process.stdout], [], [], within_s)[0] else b""


def test_nothing_passes_a_pulled_cable_and_what_was_said_arrives_later(cable: Cable, echo: Echo) -> None:
    cable.down()
    say(echo, b"b")
    assert heard(echo, 0.5) == b""
    assert cable.connections(echo.pid) == 1
    cable.up()
    assert heard(echo, 150) == b"b"


def test_what_a_killed_test_left_is_removed_by_the_next(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed = subprocess.run([sys.executable, "-c", CRASH], stdout=subprocess.PIPE, text=True, timeout=150, check=False)
    assert crashed.returncode == -signal.SIGKILL
    name, *pids = crashed.stdout.split()
    assert is_laid(layout.HOST_BY_NAME[name])
    # Not another one that other tests beside this one have given back meanwhile.
    monkeypatch.setattr("tests.lab.cable.CABLE_LIST", (layout.HOST_BY_NAME[name],))
    with lab.cable() as cable:
        assert cable.name == name
        assert not any(runs(int(pid)) for pid in pids)
