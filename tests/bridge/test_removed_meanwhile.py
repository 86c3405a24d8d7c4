"""What happens to a job while the host concludes it, between two steps of that in the process of the test."""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from pathlib import Path

import pytest

from clusterfn.bridge.supervisor import conclude
from clusterfn.bridge.supervisor.attempt import Attempt
from clusterfn.bridge.supervisor.job import JobFolder
from clusterfn.bridge.supervisor.process_tree import boot_id
from clusterfn.bridge.supervisor.verdict import Verdict
from tests.bridge.host import Bench
from tests.waiting import replace_here


def test_a_conclusion_that_is_late_does_not_bring_a_removed_job_back(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """The client removes a refused job while the host still concludes it."""
    job = bench.job("def f():\n    pass\n")

    verdict = {"kind": "lost", "message": "never began", "stage": "submit"}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(verdict)))
    monkeypatch.setattr(conclude, "claim", lambda *_: shutil.rmtree(job.folder))  # right after its claim

    with pytest.raises(FileNotFoundError):
        conclude.conclude_on_request(str(job.folder))

    assert not job.folder.exists()


@pytest.mark.parametrize("kind", ["cancelled", "lost"], ids=["withdrawn", "by one that has died"])
def test_a_job_that_is_concluded_is_lost_only_if_no_other_cause_comes(bench: Bench, monkeypatch, kind: str):
    """Its script ends as it finds the claim, before the cause is published."""
    job = bench.job("def f():\n    pass\n")
    (job.folder / "claim").write_text("concluded")
    folder = JobFolder(str(job.folder))
    if kind == "cancelled":
        replace_here(monkeypatch, time, "sleep", lambda _: Attempt.new(folder).publish(Verdict(kind, "on request")))

    attempt, won = conclude.conclude_by(folder, Verdict("lost", "its processes are gone"))
    assert (won, job.outcome()["kind"]) == (kind == "lost", kind)


def test_a_job_whose_script_runs_is_not_one_that_never_started(bench: Bench) -> None:
    """It may be in `setup:`, and a program that attaches to it knows no id of it."""
    job = bench.job("def f():\n    pass\n")
    (job.folder / "started").write_text(f"{boot_id()} {Path('/proc/self/stat').read_text()}")
    never_started = Verdict("lost", "the job was sent but never started", stage="submit")

    assert conclude.conclude_by(JobFolder(str(job.folder)), never_started, withdraw=True) == (None, False)
    assert not job.has_outcome() and not (job.folder / "claim").exists()
