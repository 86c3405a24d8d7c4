"""What an attempt leaves of its job once it has an outcome."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.fakes.job_spec import job_spec

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs run on hosts, which are no Windows machines")


def test_secrets_stay_until_an_outcome_is_final(tmp_path: Path):
    from clusterfn.bridge.layout import SECRETS
    from clusterfn.bridge.supervisor.attempt import Attempt
    from clusterfn.bridge.supervisor.job import JobFolder
    from clusterfn.bridge.supervisor.verdict import Verdict

    folder = tmp_path / "jobs" / ("7f3a" * 4)
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(job_spec(folder)))
    (folder / SECRETS).write_text("{}")
    job = JobFolder(str(folder))

    assert Attempt.new(job).publish(Verdict("preempted", "its node was lost"))
    assert (folder / SECRETS).exists()
    assert Attempt.new(job).publish(Verdict("returned"))
    assert not (folder / SECRETS).exists()
