"""What an attempt leaves of its job once it has an outcome, or is to end before it has begun."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.job_spec import lay_job

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs run on hosts, which are no Windows machines")


def test_secrets_stay_until_an_outcome_is_final(tmp_path: Path):
    from clusterfn.bridge.layout import SECRETS
    from clusterfn.bridge.supervisor.attempt import Attempt
    from clusterfn.bridge.supervisor.job import JobFolder
    from clusterfn.bridge.supervisor.verdict import Verdict

    folder = lay_job(tmp_path)
    (folder / SECRETS).write_text("{}")
    job = JobFolder(str(folder))

    assert Attempt.new(job).publish(Verdict("preempted", "its node was lost"))
    assert (folder / SECRETS).exists()
    assert Attempt.new(job).publish(Verdict("returned"))
    assert not (folder / SECRETS).exists()


def test_a_job_that_is_to_end_while_it_copies_a_checkpoint_leaves_none(tmp_path: Path):
    from clusterfn.bridge.layout import CHECKPOINT, job_dir
    from clusterfn.bridge.supervisor.checkpoint import resume
    from clusterfn.bridge.supervisor.verdict import AttemptEnded, Verdict

    theirs, own = Path(job_dir(str(tmp_path), "before")) / CHECKPOINT, tmp_path / "own"
    theirs.mkdir(parents=True)
    own.mkdir()
    (theirs / "model.pt").write_bytes(b"x" * 100)
    job: Any = SimpleNamespace(spec={"resume": "before"}, root=str(tmp_path), has_checkpoint=lambda: False)
    job.path = lambda name: str(own / name)

    def look() -> None:
        raise AttemptEnded(Verdict("cancelled"))

    with pytest.raises(AttemptEnded):
        resume(job, look)
    assert not list(own.iterdir())
    assert resume(job, lambda: None) == [] and (own / CHECKPOINT / "model.pt").stat().st_size == 100
