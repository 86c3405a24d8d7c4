"""A job that is to start in a held allocation, with an srun that does otherwise: it goes to sbatch, which says why."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge import layout
from clusterfn.bridge.schedulers import slurm_allocation
from tests.waiting import until

# srun outlives this process, which then becomes sbatch
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
RECORD = {"id": "17", "cores": 4, "memory_mb": None, "gpus": 0, "ends": None, "job": "7f3a000011112222"}
Enter = Callable[[str], list[str]]


class LeftToSbatch(Exception):
    """The words with which this process became sbatch."""


@pytest.fixture
def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Start a job in the allocation with this script as srun; return the words of sbatch, none if it started."""
    held, job, srun = tmp_path / layout.HOLD, tmp_path / "job", tmp_path / "srun"
    for folder in (held, job):
        folder.mkdir()
    (held / layout.HOLD_RECORD).write_text(json.dumps(RECORD))
    (held / layout.HOLD_ENVIRONMENT).write_bytes(b"PATH=/usr/bin:/bin\0SLURM_STEP_ID=batch\0HERE=1\0")
    clock = itertools.count()  # seconds
    monkeypatch.setattr(
        slurm_allocation, "time",
        SimpleNamespace(time=time.time, monotonic=lambda: float(next(clock)), sleep=lambda _: time.sleep(0.01)),
    )  # fmt: skip

    def become(program: str, words: tuple[str, ...]) -> None:
        raise LeftToSbatch(*words)

    monkeypatch.setattr(os, "execvp", become)

    def run(script: str) -> list[str]:
        srun.write_text("#!/bin/sh\n" + script)
        srun.chmod(0o700)
        asked = {"name": "fit", "cores": 1, "memory_mb": 1, "gpus": 0, "gpu_type": "", "time_s": None}
        words = json.dumps({**asked, "folder": str(job), "srun": [str(srun)]})
        try:
            assert slurm_allocation.enter(str(held), words, "sbatch", "job.sh") == 0
        except LeftToSbatch as left:
            return list(left.args)
        return []

    return run


def test_an_srun_that_lives_for_long_without_beginning_the_job_leaves_it_to_sbatch(
    enter: Enter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    try:
        assert enter(f"echo $$ >{tmp_path}/pid\nexec sleep 600\n") == ["sbatch", "job.sh"]
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    assert capsys.readouterr().err == (
        "clusterfn: fit is not in the held allocation 17: srun has not started it within 20 s\n"
    )
    assert (tmp_path / layout.HOLD / layout.HOLD_RECORD).exists(), "it may still take other jobs"


def test_an_srun_that_begins_the_job_is_left_alone_with_the_variables_of_the_node(enter: Enter, tmp_path: Path):
    script = f"echo $HERE $SLURM_STEP_ID $CLUSTERFN_STEP | tee {tmp_path}/seen\necho 17.0 >{tmp_path}/job/claim\n"

    assert enter(script) == []
    assert (tmp_path / "seen").read_text().split()[0] == "1"
    assert "batch" not in (tmp_path / "seen").read_text(), "srun sets those of its step"


@pytest.mark.parametrize("number", ["17", "18"])
def test_an_allocation_that_is_gone_is_forgotten_unless_another_is_held_meanwhile(
    enter: Enter, tmp_path: Path, number: str
):
    record = tmp_path / layout.HOLD / layout.HOLD_RECORD
    other: dict[str, Any] = {**RECORD, "id": number}
    (tmp_path / "other").write_text(json.dumps(other))
    said = "echo 'srun: error: Invalid user for SlurmUser slurm, ignored\nsrun: error: Slurm job 17 has expired' >&2"
    words = enter(f"cp {tmp_path}/other {record}\n{said}\nexit 1\n")

    assert words == ["sbatch", "job.sh"]
    assert record.exists() == (number != "17")


# Does what srun does on the node: run the words that follow its own options.
ON_THE_NODE = 'while [ "$1" != /bin/sh ]; do shift; done\nSLURM_JOB_ID=17 SLURM_STEP_ID=3 exec "$@"\n'


@pytest.mark.parametrize("claimed", [False, True])
def test_the_job_is_claimed_for_its_step_before_its_script_runs_and_no_other_name_is_left(
    enter: Enter, tmp_path: Path, claimed: bool
):
    job = tmp_path / "job"
    (job / layout.SCRIPT).write_text(f"cp {job}/claim {tmp_path}/seen\n")
    if claimed:  # by another submission
        (job / layout.CLAIM).write_text("16")

    assert enter(ON_THE_NODE) == []

    until((tmp_path / "seen").exists)
    assert (tmp_path / "seen").read_text() == (job / layout.CLAIM).read_text() == ("16" if claimed else "17.3")
    until(lambda: {each.name for each in job.iterdir()} == {layout.CLAIM, layout.SCRIPT, layout.SCHEDULER_LOG})
