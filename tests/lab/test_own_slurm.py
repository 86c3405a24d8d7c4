"""A SLURM of a test's own has the settings that it was given, runs jobs, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.processes import named
from tests.waiting import until

pytestmark = pytest.mark.lab


def test_nothing_of_it_is_left(lab: Lab) -> None:
    with lab.own_slurm() as own:
        own.root.mkdir()
        first, second = (f"sleep {number}.{os.getpid()}" for number in (1234, 1235))  # as no other program does
        lines = [f"setsid {each} </dev/null >/dev/null 2>&1 &" for each in (first, f"srun {second}")]
        assert own.ssh(" ".join(lines)).returncode == 0
        until(lambda: named(*first.split()) and named(*second.split()))
    assert not own.folder.exists() and not own.root.exists()
    assert not named(own.folder) and not named(*first.split()) and not named(*second.split())


def test_it_ends_with_a_test_that_is_killed_and_the_next_one_removes_its_files(lab: Lab) -> None:
    script = "import os, signal\nfrom tests.lab import own_slurm\n"
    script += "with own_slurm.started(nodes=1) as own:\n    print(own.folder, flush=True)\n"
    script += "    os.kill(os.getpid(), signal.SIGKILL)\n"
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    folder = Path(done.stdout.strip())
    assert folder.name.startswith("own-slurm-")
    until(lambda: not named(folder))
    with lab.own_slurm(nodes=1):
        assert not folder.exists()
