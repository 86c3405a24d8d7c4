"""One winner, whatever the file system does: link, a link whose answer lies, and no links at all."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterfn.bridge.schedulers.slurm import SlurmOnHost
from clusterfn.bridge.supervisor import publish
from clusterfn.bridge.supervisor.limits import Suspension, clock
from clusterfn.bridge.supervisor.nodes import Others
from clusterfn.bridge.supervisor.verdict import AttemptEnded
from clusterfn.bridge.supervisor.watch import EndWatch
from tests.waiting import replace_here


def test_the_first_wins_and_stays(tmp_path: Path):
    folder = str(tmp_path)

    assert publish.publish(folder, "outcome.json", b"first")
    assert not publish.publish(folder, "outcome.json", b"second")
    assert publish.read(folder, "outcome.json") == b"first"
    assert os.listdir(folder) == ["outcome.json"]


def test_whether_it_exists_is_asked_of_the_folder_as_nfs_remembers_that_a_file_was_missing(tmp_path, monkeypatch):
    assert not publish.is_there(str(tmp_path), "outcome.json")
    publish.publish(str(tmp_path), "outcome.json", b"first")
    monkeypatch.setattr(os.path, "exists", lambda path: False)

    assert publish.is_there(str(tmp_path), "outcome.json")
    assert not publish.is_there(str(tmp_path / "removed"), "outcome.json")


def test_who_watches_an_attempt_or_other_nodes_asks_the_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On SLURM these look for what another node has published."""
    job = SimpleNamespace(spec={"resources": {"time_s": None}}, scheduler=SlurmOnHost(), cancelled=lambda: False)
    attempt = SimpleNamespace(
        folder=str(tmp_path), path=lambda name: str(tmp_path / name), number=1, words_of_tasks=list
    )
    (tmp_path / "nodes" / "1").mkdir(parents=True)
    publish.publish(str(tmp_path / "nodes" / "1"), "outcome.json", b'{"kind": "returned"}')
    publish.publish(str(tmp_path), "outcome.json", b"{}")
    others = Others(job, attempt, [])
    others.ranks, others.launcher_pid = [1], os.getpid()
    monkeypatch.setattr(os.path, "exists", lambda path: False)

    with pytest.raises(AttemptEnded, match="concluded by another"):
        EndWatch(job, attempt, SimpleNamespace(came={}, swallow=lambda: None)).look()
    assert others.have_returned()


def test_a_supervisor_that_was_stopped_while_it_worked_ends_no_job_before_it_has_looked_for_how_long(tmp_path: Path):
    job = SimpleNamespace(spec={"resources": {"time_s": 0.0}}, scheduler=SlurmOnHost(), cancelled=lambda: False)
    suspension = Suspension({}, by_scheduler=True, tell=print)
    suspension.begin()
    watch = EndWatch(job, SimpleNamespace(folder=str(tmp_path)), SimpleNamespace(came={}, swallow=lambda: None))
    watch.start_clock(clock.looked + 1e-9)

    watch.look()
    suspension.look(time.monotonic(), 0.0, 0)
    with pytest.raises(AttemptEnded, match="ran longer"):
        watch.look()


def test_a_link_that_succeeded_but_answered_eexist_has_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    link = os.link

    def resent(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists", target)

    monkeypatch.setattr(os, "link", resent)

    assert publish.publish(str(tmp_path), "outcome.json", b"mine")


@pytest.fixture(params=[errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV])
def no_links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that refuses links."""

    def refuse(source: str, target: str) -> None:
        raise OSError(request.param, os.strerror(request.param), source)

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("no_links")
def test_without_links_the_first_wins_and_stays(tmp_path: Path):
    folder = str(tmp_path)

    assert publish.publish(folder, "outcome.json", b"first")
    assert not publish.publish(folder, "outcome.json", b"second")
    assert publish.read(folder, "outcome.json") == b"first"


@pytest.mark.usefixtures("no_links")
def test_without_links_a_winner_that_died_half_way_is_completed(tmp_path: Path):
    folder = str(tmp_path)
    publish.publish(folder, "outcome.json", b"first")
    (tmp_path / "outcome.json").unlink()  # it died before it gave the file its name

    assert not publish.publish(folder, "outcome.json", b"second")
    assert (tmp_path / "outcome.json").read_bytes() == b"first"


@pytest.mark.usefixtures("no_links")
def test_without_links_a_reader_sees_what_a_dead_winner_published(tmp_path: Path):
    publish.publish(str(tmp_path), "outcome.json", b"first")
    (tmp_path / "outcome.json").unlink()

    assert publish.read(str(tmp_path), "outcome.json") == b"first"


def test_of_many_at_once_one_wins(tmp_path: Path):
    """Each in a process of its own, which waits until all are there."""
    gate, opened = os.pipe()
    children = []
    for number in range(8):
        pid = os.fork()
        if pid == 0:
            os.close(opened)
            os.read(gate, 1)
            os._exit(publish.publish(str(tmp_path), "outcome.json", b"%d" % number))
        children.append(pid)
    for end in (opened, gate):
        os.close(end)

    won = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]

    assert sorted(won) == [0] * 7 + [1]


def test_the_reserve_is_spent_on_the_outcome(tmp_path: Path):
    reserve = publish.Reserve(str(tmp_path))
    assert os.stat(reserve.path).st_blocks * 512 >= 65536

    assert publish.publish(str(tmp_path), "outcome.json", b"x" * 100, reserve)

    assert os.listdir(tmp_path) == ["outcome.json"]
    assert (tmp_path / "outcome.json").stat().st_size == 100


def test_what_is_published_is_on_the_disk_before_it_is_visible_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A crash of the machine itself: nothing but fsync survives it."""
    said: list[str] = []
    fsync, link = os.fsync, os.link

    def synced(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        said.append("sync folder" if path == tmp_path else f"sync {path.read_text()}")
        fsync(fd)

    def linked(source: str, target: str) -> None:
        said.append("link")
        link(source, target)

    replace_here(monkeypatch, os, "fsync", synced)
    replace_here(monkeypatch, os, "link", linked)

    publish.publish(str(tmp_path), "outcome.json", b"mine")

    assert said == ["sync mine", "link", "sync folder"]


def test_a_process_killed_before_it_removed_its_temporary_hands_the_published_file_to_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a container every supervisor has the same pid."""
    with monkeypatch.context() as killed:
        killed.setattr(os, "unlink", lambda path: None)  # between link(2) and unlink(2)
        assert publish.publish(str(tmp_path), "outcome.json", b"first")
    assert len(os.listdir(tmp_path)) == 2

    assert not publish.publish(str(tmp_path), "outcome.json", b"second")

    assert publish.read(str(tmp_path), "outcome.json") == b"first"


def test_a_reserve_that_was_published_is_never_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reserve = publish.Reserve(str(tmp_path))
    with monkeypatch.context() as refused:
        refused.setattr(os, "unlink", lambda path: None)  # the file server refused
        assert publish.publish(str(tmp_path), "outcome.json", b"first", reserve)

    assert not publish.publish(str(tmp_path), "outcome.json", b"second", reserve)

    assert publish.read(str(tmp_path), "outcome.json") == b"first"


def test_a_file_is_replaced_whole_and_on_the_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[str] = []
    replace_here(monkeypatch, os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    publish.replace(str(tmp_path / "ticket"), b"old")
    synced.clear()

    publish.replace(str(tmp_path / "ticket"), b"new")

    assert (tmp_path / "ticket").read_bytes() == b"new"
    assert len(synced) == 2 and synced[1] == str(tmp_path)
    assert os.listdir(tmp_path) == ["ticket"]


def test_what_cannot_be_replaced_leaves_no_temporary(tmp_path: Path):
    (tmp_path / "ticket").mkdir()

    with pytest.raises(OSError):
        publish.replace(str(tmp_path / "ticket"), b"new")

    assert os.listdir(tmp_path) == ["ticket"]
