"""A SLURM of a test's own has the settings that it was given, runs jobs, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.waiting import until

pytestmark = pytest.mark.lab


def told() -> str:
    """The command lines of all processes."""
    return subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_nothing_of_it_is_left(lab: Lab) -> None:
    with lab.own_slurm() as own:
        own.root.mkdir()
        lines = [f"setsid {each} </dev/null >/dev/null 2>&1 &" for each in ("sleep 1234", "srun sleep 1235")]
        assert own.ssh(" ".join(lines)).returncode == 0
        until(lambda: "\nsleep 1234" in told() and "bin/sleep 1235" in told())
    assert not own.folder.exists() and not own.root.exists()
    assert str(own.folder) not in told() and "sleep 1234" not in told() and "sleep 1235" not in told()


def test_it_ends_with_a_test_that_is_killed_and_the_next_one_removes_its_files(lab: Lab) -> None:
    script = "import os, signal\nfrom tests.lab import own_slurm\n"
    script += "with own_slurm.started(nodes=1) as own:\n    print(own.folder, flush=True)\n"
    script += "    os.kill(os.getpid(), signal.SIGKILL)\n"
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    folder = Path(done.stdout.strip())
    assert folder.name.startswith("own-slurm-")
    until(lambda: str(folder) not in told())
    with lab.own_slurm(nodes=1):
        assert not folder.exists()
