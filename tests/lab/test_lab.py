"""What the lab makes for one test is removed, and `down` removes nothing else."""

from __future__ import annotations

import pwd
import signal
import subprocess
import sys

import pytest

from tests.lab import Lab, accounts, layout, teardown, totp
from tests.lab.processes import State

pytestmark = pytest.mark.lab
CRASH = """
import os
from tests.lab import Lab
with Lab().newcomer() as newcomer:
    print(newcomer.name, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_nothing_of_a_newcomer_is_left(lab: Lab) -> None:
    with lab.newcomer() as newcomer:
        argv = ["setsid", "--fork", "sleep", "60"]
        subprocess.run(argv, user=newcomer.uid, cwd="/", check=True, timeout=150)
        assert accounts.processes_of({newcomer.uid})
    assert accounts.processes_of({newcomer.uid}) == []
    assert not newcomer.home.exists()
    assert newcomer.name not in {found.pw_name for found in pwd.getpwall()}


def test_a_newcomer_whom_a_killed_test_left_is_removed_by_the_next(lab: Lab) -> None:
    left = subprocess.run([sys.executable, "-c", CRASH], stdout=subprocess.PIPE, text=True, timeout=150, check=False)
    assert left.returncode == -signal.SIGKILL
    assert pwd.getpwnam(left.stdout.strip())
    with lab.newcomer():
        assert left.stdout.strip() not in {found.pw_name for found in pwd.getpwall()}


def test_down_would_remove_own_things_only(lab: Lab) -> None:
    words = [line.split(maxsplit=1) for line in teardown.removals(State.load())]
    places = {what for kind, what in words if kind in ("folder", "mount")}
    assert {what[:2] for kind, what in words if kind == "account"} == {"cf"}
    elsewhere = ("/run/sshd", str(layout.GRID_ENGINE_LIBRARIES))
    assert all(place in elsewhere or place.startswith(str(layout.ROOT)) for place in places)
    assert {what for kind, what in words if kind == "file"} == {str(totp.PAM_SERVICE)}
