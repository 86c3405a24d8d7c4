"""Jobs on a host that an earlier version sent (its files are in jobs.tar.gz) can be listed, attached to and read."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import clusterfn

MADE = Path(__file__).with_name("jobs.tar.gz")
RETURNED, RAISED, KILLED, GROUP, SESSION = (
    "2f7c813b4dd987ff", "18b58176d270771c", "d5a28f10fe577b1a", "b41f95f331684fc1", "f6c935853b849549",
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    with tarfile.open(MADE) as archive:
        archive.extractall(root)
    for spec in root.glob("jobs/*/spec.json"):  # the root of a job is named there
        spec.write_text(spec.read_text().replace("/home/ann/made/root", str(root)))
    config = tmp_path / "clusterfn.yml"
    config.write_text(f"hosts:\n  here:\n    scheduler: local\n    root: {root}\n    limits: {{cores: 64}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    return root


@pytest.mark.usefixtures("root")
def test_each_is_listed_with_its_state():
    states = {info.id: info.state for info in clusterfn.jobs()}

    assert states == {
        RETURNED: "RETURNED", RAISED: "RAISED", KILLED: "DIED", GROUP: "RETURNED", SESSION: "RETURNED",
    }  # fmt: skip


@pytest.mark.usefixtures("root")
def test_a_value_with_what_was_printed():
    job = clusterfn.attach(RETURNED)

    assert job.result(150) == {"sum": 5}
    assert job.logs() == "adding 2 3\n"


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("digits, error", [(RAISED, ZeroDivisionError), (KILLED, clusterfn.KilledBySignal)])
def test_an_error(digits: str, error: type[Exception]):
    with pytest.raises(error):
        clusterfn.attach(digits).result(150)


@pytest.mark.usefixtures("root")
def test_a_group_with_an_item_that_failed():
    group = clusterfn.attach(GROUP)

    assert group.wait(150)
    assert [group.result(index) for index in (0, 1, 3)] == [1.0, 0.5, 0.25]
    assert isinstance(group.failed[2], ZeroDivisionError)


@pytest.mark.usefixtures("root")
def test_a_session_that_was_closed():
    assert clusterfn.attach(SESSION).result(150)["why"] == "closed"


def test_one_that_still_runs_and_ends_later(root: Path):
    outcome = root / "jobs" / RETURNED / "attempts" / "1" / "outcome.json"
    outcome.rename(outcome.with_name("later"))
    job = clusterfn.attach(RETURNED)
    assert not job.done()

    outcome.with_name("later").rename(outcome)

    assert job.result(150) == {"sum": 5}
