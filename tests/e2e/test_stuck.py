"""A job whose supervisor was stopped: a host with a scheduler says so and ends it on request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn import Cancelled, cluster
from tests.e2e.conftest import Hosts
from tests.waiting import until

pytestmark = [pytest.mark.lab]


def run_stuck(host: str) -> clusterfn.Job[str]:
    """A job that has stopped its own supervisor; it lasts for minutes."""

    @cluster(host=host, time="10min")
    def stops_its_supervisor() -> str:
        import os
        import signal
        import time
        from pathlib import Path

        while '"running"' not in Path("../events.jsonl").read_text():  # the supervisor has published that it runs
            time.sleep(0.02)
        os.kill(os.getppid(), signal.SIGSTOP)
        Path("stopped").touch()
        time.sleep(550)
        return "value"

    return stops_its_supervisor.submit()


@pytest.mark.parametrize("host", ["slurm", pytest.param("gridengine-bash", marks=pytest.mark.long)])
def test_a_job_that_stopped_its_supervisor_is_ended_by_cancel(
    ask: Any, hosts: Hosts, host: str, lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if host.startswith("gridengine"):
        extra = "scheduler: grid_engine\npoll_floor: 1s\ndefaults: {memory: 500MB}"
        blocks = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, extra, (host,)).read_text()
        (tmp_path / "clusterfn.yml").write_text(re.sub("    (scheduler: bare|limits: .*)\n", "", blocks))
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    job = run_stuck(host)
    until((hosts.root / "jobs" / job.id / "attempts" / "1" / "work" / "stopped").exists)

    said = ask("cancel", job.id)

    assert said.returncode == 0, said.stderr
    assert "was stopped: CANCELLED" in said.stderr
    assert isinstance(job.exception(150), Cancelled), "the function lasts longer, and would return a value"
