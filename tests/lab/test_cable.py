"""Nothing is left of a cable of the lab."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.lab import Lab, layout
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
