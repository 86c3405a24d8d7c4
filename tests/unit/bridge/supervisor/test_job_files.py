"""What lies in a job's folder is checked where it is read: a function may write anything there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from clusterfn.bridge.supervisor.attempt import Attempt
from clusterfn.bridge.supervisor.job import JOB_SPEC, DamagedFile, JobFolder, checked, read_spec
from clusterfn.bridge.supervisor.spec import Spec, SpecBuilding, SpecGroup, SpecResources
from clusterfn.config.job_spec import KernelSpec, SessionSpec
from clusterfn.config.spec import ResultPolicy
from tests.fakes.job_spec import job_spec
from tests.unit.calls.test_mapping import SENT

JOB = "7f3a000011112222"
SPEC = job_spec(Path("/r/jobs") / JOB)
OUTCOME = {"kind": "returned", "final": True, "message": "", "earlier": []}


def lay(root: Path, spec: Any = None, outcome: Any = None) -> Path:
    folder = root / "jobs" / JOB
    (folder / "attempts" / "1").mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(SPEC if spec is None else spec))
    if outcome is not None:
        (folder / "attempts" / "1" / "outcome.json").write_text(json.dumps(outcome))
    return folder


@pytest.mark.parametrize(
    "spec, says",
    [
        ([], "spec.json is of the type list"),
        ({**SPEC, "root": None}, "spec.json has no root"),
        ({**SPEC, "root": "/r\0"}, "root holds a zero byte"),
        ({**SPEC, "keep_days": "14"}, "keep_days is of the type str"),
        ({**SPEC, "keep_days": 10**400}, "keep_days is 1000"),
        ({**SPEC, "resources": {"gpus": [1]}}, "resources: gpus is of the type list"),
        ({**SPEC, "after": {JOB: {"items": [1]}}}, f"after: {JOB} has no name"),
        ({**SPEC, "after": {JOB: {"name": "f", "items": ["1"]}}}, "items is of the type str"),
        ({**SPEC, "sys_path": ["\ud800"]}, "half of a character"),
    ],
)
def test_a_spec_that_no_client_has_written_is_damaged_and_says_where(tmp_path: Path, spec: Any, says: str):
    with pytest.raises(DamagedFile, match=says):
        JobFolder(str(lay(tmp_path, spec)))


@pytest.mark.parametrize("text", ["", "{", "[" * 10**5, "garb\0age", "null"])
def test_a_spec_that_is_no_json_object_is_damaged(tmp_path: Path, text: str):
    folder = lay(tmp_path)
    (folder / "spec.json").write_text(text)

    with pytest.raises(DamagedFile):
        read_spec(str(folder))


@pytest.mark.parametrize(
    "outcome",
    [{"kind": "returned"}, {**OUTCOME, "kind": 7}, {**OUTCOME, "usage": {"gpus": [7]}}, {**OUTCOME, "value": 5}],
)
def test_an_outcome_that_no_supervisor_has_published_is_damaged(tmp_path: Path, outcome: Any):
    job = JobFolder(str(lay(tmp_path, outcome=outcome)))

    with pytest.raises(DamagedFile):
        Attempt(job, 1).outcome()


def test_what_another_version_writes_in_addition_and_any_text_of_the_users_is_read(tmp_path: Path):
    outcome = {**OUTCOME, "final": True, "message": "a\0b \ud800", "later": [1]}
    job = JobFolder(str(lay(tmp_path, {**SPEC, "host": "\ud800", "later": {"a": 1}}, outcome)))

    assert job.spec["host"] == "\ud800" and Attempt(job, 1).outcome() == outcome


def test_the_types_of_the_host_have_the_fields_that_the_client_writes():
    host = SENT.host._replace(scheduler_options={"clusters": "far"}, gpus_only=("GPU-1",))
    held = {"serving": SessionSpec(60.0, (3, 11)), "kernel": KernelSpec("ipykernel", 60.0, 60.0, (3, 11))}
    data = ResultPolicy(data_only=True)
    sent = json.loads(SENT._replace(host=host, keep_value=True, results=data, **held).to_json())

    assert set(sent) == set(get_type_hints(Spec)) - {"syncs_later"}
    for part, kind in ("resources", SpecResources), ("building", SpecBuilding), ("group", SpecGroup):
        assert set(sent[part]) == set(get_type_hints(kind)), part
    assert checked(sent, JOB_SPEC, "spec.json") == sent
    assert {name.rstrip("?") for name in JOB_SPEC} <= set(sent)
