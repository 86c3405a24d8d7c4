"""`clusterfn release` says what was held, in the words of a record that lies on the host."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.programs import main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the host is this machine")
JOB = "7f3a000011112222"


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the record of what is held on a SLURM host, which this machine is."""
    root, programs = tmp_path / "root", tmp_path / "bin"
    folder = root / "held"
    for each in (root, programs, folder):
        each.mkdir(mode=0o700)
    for name in ("sbatch", "squeue", "scontrol"):
        (programs / name).write_text(f"#!/bin/sh\necho JobId=17 JobName=hold.{JOB} JobState=RUNNING\n")
        (programs / name).chmod(0o755)
    config = tmp_path / "clusterfn.yml"
    config.write_text(
        f"hosts:\n  held: {{transport: local, scheduler: slurm, root: {root}, scheduler_path: [{programs}]}}\n"
    )
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    return folder


def test_the_record_of_an_allocation_moves_no_cursor(held: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"id": "17", "job": JOB, "cores": 2, "gpus": 1, "node": "n1\x1b[2J\x1b]0;gone\x07\nready"}
    (held / "record").write_text(json.dumps(record))

    def let_go() -> None:
        while not (held / "release").exists():
            time.sleep(0.02)
        shutil.rmtree(held)

    threading.Thread(target=let_go, daemon=True).start()

    assert main(["release", "held"]) == 0
    shown = capsys.readouterr().out
    assert shown == "held: released 2 cores and 1 GPU of n1 ready (job 7f3a); jobs that run in it end first\n"
