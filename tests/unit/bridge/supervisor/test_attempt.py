"""What an attempt leaves of its job, and what its first event keeps of the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fcntl", reason="of hosts, which are Unix")

from clusterfn.bridge.layout import CHECKPOINT, job_dir
from clusterfn.bridge.supervisor import job as bridge_job
from clusterfn.bridge.supervisor.checkpoint import resume
from clusterfn.bridge.supervisor.verdict import AttemptEnded, Verdict


def test_a_job_that_is_to_end_while_it_copies_a_checkpoint_leaves_none(tmp_path: Path):
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


def test_the_checkpoint_that_another_element_has_copied_meanwhile_stays(tmp_path: Path):
    theirs, own = Path(job_dir(str(tmp_path), "before")) / CHECKPOINT, tmp_path / "own"
    theirs.mkdir(parents=True)
    (theirs / "model.pt").write_bytes(b"theirs")
    job: Any = SimpleNamespace(spec={"resume": "before"}, root=str(tmp_path), has_checkpoint=lambda: False)
    job.path = lambda name: str(own / name)

    def look() -> None:
        (own / CHECKPOINT).mkdir(exist_ok=True)
        (own / CHECKPOINT / "model.pt").write_bytes(b"of the first")

    own.mkdir()
    assert resume(job, look) == []
    assert [path.read_bytes() for path in own.rglob("*") if path.is_file()] == [b"of the first"]


BUILDING = {"id": "7f3a", "root": "/scratch/me/.clusterfn", "purged": False, "cuda": ""}


@pytest.mark.parametrize("building", [None, BUILDING])
def test_machine_driver_and_environment_are_named(monkeypatch, tmp_path, building):
    job = SimpleNamespace(node="n01", spec={"python": "/opt/bin/python", "building": building})
    monkeypatch.setattr(bridge_job, "DRIVER_FILE", str(tmp_path / "version"))
    assert bridge_job.describe_place(job)["driver"] is None  # type: ignore[arg-type]

    (tmp_path / "version").write_text("575.57.08\n")
    facts = bridge_job.describe_place(job)  # type: ignore[arg-type]

    assert (facts["node"], facts["driver"], facts["python"]) == ("n01", "575.57.08", "/opt/bin/python")
    assert facts["environment"] == (building and "7f3a")
    assert facts["lock"] == (building and "/scratch/me/.clusterfn/envs/7f3a/.clusterfn/plan.json")
