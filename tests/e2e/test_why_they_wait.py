"""Why a job waits in SLURM's queue: a call, a map and the list of jobs say the same, with and without a terminal."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from tests.e2e.conftest import MINOR
from tests.programs import main
from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.long]
HELD = "JobHeldUser: it is held; `scontrol release` releases it"


@pytest.fixture
def host(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A host whose SLURM holds each job."""
    name = f"held-{secrets.token_hex(4)}"
    lines = [
        "address: slurm-bash", f"ssh_config: {lab.ssh_config}", f"root: ~/{name}", "scheduler: slurm",
        f'environment: "python:{lab.python(MINOR)}"', "slurm: {partition: short, hold: true}",
    ]  # fmt: skip
    path = tmp_path / "clusterfn.yml"
    path.write_text("hosts:\n  held:\n" + "".join(f"    {line}\n" for line in lines))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    yield "held"
    main(["cancel", "--all", "held"])
    shutil.rmtree(lab.home("bash") / name, ignore_errors=True)


def test_a_call_a_map_and_the_list_of_jobs_give_one_reason(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    sleep = clusterfn.cluster(host=host)(time.sleep)
    job, group = sleep.submit(1.0), sleep.map([1.0, 1.0])

    until(lambda: job.reason == group.reason == HELD)
    messages = {each.id: each.message for each in clusterfn.jobs(host)}
    with pytest.raises(TimeoutError):
        group.results(4)  # for three seconds, nothing is said of why it waits

    assert messages == {job.id: HELD, group.id: f"0 of 2 ended; {HELD}"}
    assert f"clusterfn: {group.id[:4]} pending ({HELD})\n" in capsys.readouterr().err
