"""`clusterfn.checkpoint()`: one folder for all attempts, which the client reads while the job runs and afterwards."""

from __future__ import annotations

import sys

import pytest

import clusterfn
from clusterfn import ClusterfnError, Session, cluster
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")


def save(text, fails=False):
    """Saves a text, and returns in which folder."""
    import clusterfn

    folder = clusterfn.checkpoint()
    (folder / "deep").mkdir(exist_ok=True)
    (folder / "deep" / "last.txt").write_text(text)
    if fails:
        raise ValueError(text)
    return str(folder)


def save_and_wait(text):
    """Saves a text, and ends when it is stopped."""
    import time

    import clusterfn

    (clusterfn.checkpoint() / "first.txt").write_text(text)
    (clusterfn.checkpoint() / "last.txt").write_text(text)
    time.sleep(600)


for travels_by_value in (save, save_and_wait):
    travels_by_value.__module__ = "__main__"


def test_a_job_s_checkpoint_can_be_listed_and_downloaded_after_it_failed(here, tmp_path):
    job = cluster(host="here")(save).submit("half way", fails=True)
    assert isinstance(job.exception(150), ValueError)

    for known in (job, clusterfn.attach(job.id)):
        assert [(file.name, file.size) for file in known.checkpoint.files] == [("deep/last.txt", 8)]
        (fetched,) = known.checkpoint.download(to=tmp_path / "fetched")
        assert fetched == tmp_path / "fetched" / "deep" / "last.txt" and fetched.read_text() == "half way"
    with pytest.raises(ClusterfnError, match=r"no file that matches '\*\.pt'") as wrong:
        job.checkpoint.download("*.pt")
    assert wrong.value.hint == "job.checkpoint.download() fetches what it has"


def test_a_running_job_s_checkpoint_can_be_read(here, tmp_path):
    job = cluster(host="here")(save_and_wait).submit("so far")
    try:
        until(lambda: [file.size for file in job.checkpoint.files] == [6, 6])

        (fetched,) = job.checkpoint.download("last.*", to=tmp_path / "fetched")

        assert fetched.read_text() == "so far"
        until(lambda: job.state == "RUNNING")  # on a busy machine its files may be heard of before its events
    finally:
        job.stop()


def test_a_job_that_saves_nothing_has_an_empty_checkpoint(here):
    job = cluster(host="here")(abs).submit(-1)
    job.result(150)

    assert job.checkpoint.files == []
    with pytest.raises(ClusterfnError, match="the checkpoint is empty"):
        job.checkpoint.download()


def test_each_item_of_a_map_has_a_folder_of_its_own(here, tmp_path):
    group = cluster(host="here")(save).map(["a", "b"])

    folders = group.results(150)

    assert [folder.rpartition("/checkpoint/")[2] for folder in folders] == ["0", "1"]
    assert group.checkpoint(1).download("deep", to=tmp_path)[0].read_text() == "b"
    assert [file.name for file in clusterfn.attach(group.id).checkpoint(-2).files] == ["deep/last.txt"]


def test_a_call_of_a_session_says_that_it_has_none(here):
    with Session("here") as session, pytest.raises(ClusterfnError, match="Session has no checkpoint folder"):
        session.call(save, "lost")


def test_without_a_job_it_is_a_folder_below_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert clusterfn.checkpoint() == tmp_path / "checkpoint" and (tmp_path / "checkpoint").is_dir()
    assert cluster(host="nowhere")(save).local("x") == str(tmp_path / "checkpoint")
    monkeypatch.setenv("CLUSTERFN_CHECKPOINT", str(tmp_path / "mine"))
    assert clusterfn.checkpoint() == tmp_path / "mine"
