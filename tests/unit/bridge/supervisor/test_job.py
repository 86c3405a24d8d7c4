"""What an attempt's first event keeps of the machine."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from clusterfn.bridge.supervisor import job as bridge_job

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs run on hosts, which are no Windows machines")
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
