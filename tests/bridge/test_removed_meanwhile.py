"""A job that is removed while the host concludes it, between two steps of that in the process of the test."""

from __future__ import annotations

import io
import json
import shutil
import sys

import pytest

from clusterfn.bridge.supervisor import conclude
from tests.bridge.host import Bench


def test_a_conclusion_that_is_late_does_not_bring_a_removed_job_back(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """The client removes a refused job while the host still concludes it."""
    job = bench.job("def f():\n    pass\n")

    verdict = {"kind": "lost", "message": "never began", "stage": "submit"}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(verdict)))
    monkeypatch.setattr(conclude, "claim", lambda *_: shutil.rmtree(job.folder))  # right after its claim

    with pytest.raises(FileNotFoundError):
        conclude.conclude_on_request(str(job.folder))

    assert not job.folder.exists()
