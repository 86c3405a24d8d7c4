"""Jobs of each released version, and of this one, can be listed, attached to and read; behind a link, too."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest

import clusterfn
from tests.golden.sent_jobs import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")

ARCHIVES = sorted(Path(__file__).parent.glob("[0-9]*.tar.gz"))
STATES = {"raised": "RAISED", "retry": "RAISED", "cancelled": "CANCELLED"}


@pytest.fixture(params=[(path, moved) for path in ARCHIVES for moved in (False, True)],
                ids=lambda given: f"{given[0].name.removesuffix('.tar.gz')}{'-moved' if given[1] else ''}")  # fmt: skip
def ids(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Lay out the jobs of one version; return their ids by their kind."""
    archive, moved = request.param
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    with tarfile.open(archive) as file:
        file.extractall(root)
    for pattern in ("jobs/**/*.json", "jobs/**/*.sh"):
        for path in root.glob(pattern):
            path.write_text(path.read_text().replace(ROOT, str(root)))
    told = json.loads((root / "sent.json").read_text())
    (root / "sent.json").unlink()
    if moved:
        root.rename(tmp_path / "moved")
        root.symlink_to(tmp_path / "moved")
    config = tmp_path / "clusterfn.yml"
    config.write_text(f"hosts:\n  here:\n    scheduler: local\n    root: {root}\n    limits: {{cores: 64}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    found: dict[str, str] = told["ids"]
    return found


def test_there_is_an_archive_of_this_version():
    assert f"{clusterfn.__version__}.tar.gz" in [path.name for path in ARCHIVES]


def test_each_is_listed_with_its_state_and_its_inputs(ids):
    listed = {info.id: info for info in clusterfn.jobs()}

    assert {job_id: info.state for job_id, info in listed.items()} == {
        job_id: STATES.get(kind, "RETURNED") for kind, job_id in ids.items()
    }
    assert list(listed[ids["taking"]].inputs) == [ids["kept"]]


def test_values_and_output(ids):
    assert clusterfn.attach(ids["returned"]).result(150) == {"sum": 5}
    assert clusterfn.attach(ids["returned"]).logs() == "adding 2 3\n"
    assert clusterfn.attach(ids["kept"]).result(150) == {"sum": 7}
    assert clusterfn.attach(ids["taking"]).result(150) == 8


def test_one_that_still_runs_and_ends_later(ids, tmp_path, monkeypatch):
    monkeypatch.setattr("clusterfn.calls.liveness.SILENT_AFTER_S", 600.0)  # else it is lost 12 s later: nothing runs
    outcome = tmp_path / "root" / "jobs" / ids["returned"] / "attempts" / "1" / "outcome.json"
    outcome.rename(outcome.with_name("later"))
    job = clusterfn.attach(ids["returned"])
    assert not job.done()

    outcome.with_name("later").rename(outcome)

    assert job.result(150) == {"sum": 5}


def test_errors(ids):
    with pytest.raises(ZeroDivisionError):
        clusterfn.attach(ids["raised"]).result(150)
    with pytest.raises(clusterfn.Cancelled):
        clusterfn.attach(ids["cancelled"]).result(150)


def test_files_and_checkpoint(ids, tmp_path):
    job = clusterfn.attach(ids["files"])

    assert [file.name for file in job.files] == ["model.txt"]
    assert [file.name for file in job.checkpoint.files] == ["state"]
    assert job.download(to=tmp_path / "there")[0].read_text() == "seen"


@pytest.mark.parametrize("kind", ["group", "retry"])
def test_a_group_and_its_retry_have_their_values_and_failures(ids, kind):
    group = clusterfn.attach(ids[kind])

    assert group.wait(150)
    assert [group.result(index) for index in (0, 1)] == [1.0, 0.5]
    assert isinstance(group.failed[2], ZeroDivisionError)


def test_a_session_that_was_closed(ids):
    assert clusterfn.attach(ids["session"]).result(150)["why"] == "closed"


def test_a_kept_value_is_taken_by_a_call_of_this_version(ids):
    def double(found):
        return 2 * found["sum"]

    double.__module__ = "__main__"

    assert clusterfn.cluster(double)(clusterfn.attach(ids["kept"])) == 14
