"""Jobs of one client ask for admission in the order in which they were sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn.bridge.queue.arrivals import EarlierJob, wait_for_earlier_submissions


def end(script: subprocess.Popen[bytes]) -> None:
    script.kill()
    script.wait()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a process finds its brothers in /proc")
def test_a_script_that_ends_before_it_asks_leaves_its_place_to_the_one_before(tmp_path: Path):
    scripts: dict[str, subprocess.Popen[bytes]] = {}
    for job in ("first", "second", "own"):
        (tmp_path / job).mkdir()
        (tmp_path / job / "job.sh").write_text("kill -STOP $$\n")
        argv = ["/bin/sh", str(tmp_path / job / "job.sh")]
        scripts[job] = subprocess.Popen(argv)
    asked: list[str] = []

    def has_come(other: EarlierJob) -> bool:
        asked.append(other.job)
        if other.job == "second":
            end(scripts["second"])
        return other.job == "first"

    try:
        wait_for_earlier_submissions(scripts["own"].pid, has_come)
    finally:
        for script in scripts.values():
            end(script)

    assert asked == ["second", "first"]
