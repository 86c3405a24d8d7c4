"""Files of a job on its host: their names are not trusted, which are fetched in which requests, and what stays."""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import stat
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfn import ClusterfnError, ConfigError, HostError
from clusterfn.hosts.remote_files import fetch, left_behind, not_fetched
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.transfer import safe_parts
from tests.fakes.downloads import checkpoint, download, interrupted_at, matching, write_to

LARGE = 2**16 + 1


class Host:
    """A connection to a job that left these files.

    It answers nothing before it was asked for `ahead`, and cannot read those named `bad`. Its job has removed those
    named `gone` since they were listed.

    Attributes:
        asked: The paths that were asked for, in order.
        given_up: How many requests were cancelled.
        open, most: How many files are asked for and have not been taken; the most of them at any time.
    """

    def __init__(self, *names: str, size: int = 1, ahead: int = 0, mode: int = 0o644) -> None:
        self.names, self.size, self.ahead, self.mode = names, size, ahead, mode
        self.asked: list[str] = []
        self.given_up = self.open = self.most = 0

    def list(self, folder, pattern, limit):
        return Answer(self, lambda: [TreeEntry(name, self.size, self.mode) for name in matching(self.names, pattern)])

    def get(self, path, out):
        self.asked.append(path)
        self.open += 1
        self.most = max(self.most, self.open)
        return Answer(self, lambda: self._file(path, out))

    def _file(self, path, out):
        assert len(self.asked) >= self.ahead
        self.open -= 1
        if "gone" in path:
            raise failure(f"{path} does not exist", "missing")
        out(b"half")
        if "bad" in path:
            raise failure(f"{path} cannot be used")


def failure(message: str, kind: str = "") -> HostError:
    error = HostError(message)
    error.kind = kind
    return error


@dataclass
class TreeEntry:
    name: str
    size: int
    mode: int = 0o644


@dataclass
class Answer:
    host: Host
    work: Callable[[], Any]

    def result(self, timeout):
        return self.work()

    def cancel(self):
        self.host.given_up += 1


class LyingHost(Host):
    """One that lists whatever it likes."""

    def list(self, folder, pattern, limit):
        return Answer(self, lambda: [TreeEntry(name, 1) for name in self.names])


class FullDisk(io.BytesIO):
    """A file of a disk on which nothing can be written any more, not even at its end."""

    def write(self, data):
        raise OSError(errno.ENOSPC, "no space left")

    def close(self):
        if not self.closed:
            super().close()
            raise OSError(errno.ENOSPC, "no space left")


class NearlyFullDisk(io.BytesIO):
    """A file that takes three bytes at a time."""

    def __init__(self, path, mode, **_):
        super().__init__()
        self.path = path

    def write(self, data):
        return super().write(data[:3])

    def close(self):
        if not self.closed:
            self.path.write_bytes(self.getvalue())
            super().close()


def test_many_files_are_asked_for_before_the_first_one_is_here(tmp_path):
    names = [f"{number:03}" for number in range(100)]
    host = Host(*names, size=LARGE, ahead=100)

    assert download(host, "*", tmp_path) == [tmp_path / name for name in names]
    assert [path.name for path in sorted(tmp_path.iterdir())] == names


def test_where_one_of_many_fails_what_is_whole_stays_and_of_the_others_nothing(tmp_path):
    host = Host("1", "2-bad", "3", "4-bad", size=LARGE, ahead=4)

    with pytest.raises(HostError, match="2-bad cannot be used"):
        download(host, "*", tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["1"] and host.given_up == 3


def test_what_a_running_job_has_renamed_since_it_was_listed_is_left_out(tmp_path):
    host = Host("1", "2-gone", "3", size=LARGE)

    assert download(host, "*", tmp_path) == [tmp_path / "1", tmp_path / "3"]
    with pytest.raises(HostError, match="2-gone does not exist"):
        download(host, "2*", tmp_path)


def test_a_checkpoint_has_no_files_that_are_still_being_written(tmp_path):
    host = Host(".training.state.clusterfn-ab3_de5f", "training.state", ".mine", size=LARGE)

    folder = checkpoint(host)

    assert [file.name for file in folder.files] == ["training.state", ".mine"]
    assert folder.download(to=tmp_path) == [tmp_path / "training.state", tmp_path / ".mine"]


def test_a_folder_that_cannot_be_made_is_named_and_a_full_disk_here_keeps_no_part_of_a_file(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ClusterfnError, match=r"file/a cannot be written on this machine: Not a directory") as caught:
        download(Host("a"), "*", tmp_path / "file")
    assert "to=" in caught.value.hint

    (tmp_path / "file").unlink()
    write_to(monkeypatch, lambda *_, **__: FullDisk())
    with pytest.raises(ClusterfnError, match="1 cannot be written on this machine: no space left"):
        download(Host("1", "2", "3"), "*", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
@pytest.mark.parametrize(("mode", "here"), [(0o600, 0o640), (0o644, 0o640), (0o755, 0o750), (0o500, 0o750)])
def test_a_file_has_the_mode_of_the_users_umask_and_stays_a_program(tmp_path, mode, here):
    before = os.umask(0o027)
    try:
        download(Host("a", mode=mode), "*", tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == here


@pytest.mark.parametrize("pattern", [["*.pt", "*.csv"], None, Path("a")])
def test_a_pattern_that_is_no_text_is_rejected_before_anything_is_asked(tmp_path, pattern):
    with pytest.raises(ConfigError, match="not a text"):
        download(None, pattern, tmp_path)


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))

    assert download(Host("a"), "*", Path("~/results")) == [tmp_path / "results" / "a"]


def test_what_a_disk_takes_in_parts_is_whole(tmp_path, monkeypatch):
    write_to(monkeypatch, NearlyFullDisk)

    download(Host("a-longer-name"), "*", tmp_path)

    assert (tmp_path / "a-longer-name").read_text() == "half"


def test_a_hundred_files_are_on_their_way_at_a_time(tmp_path):
    host = Host(*(f"{number:03}" for number in range(200)))

    download(host, "*", tmp_path)

    assert host.most == 100 and host.open == 0


def test_ctrl_c_leaves_whole_files_and_nothing_else(tmp_path):
    host = Host("a", "b")
    before, done = sys.gettrace(), False
    for number in range(1, 1000):
        to = tmp_path / str(number)
        sys.settrace(interrupted_at(number))
        try:
            download(host, "*", to)
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert not to.exists() or {path.name for path in to.iterdir()} <= {"a", "b"}, number
        if done:
            break
    assert done and number > 50


def test_a_name_that_leads_out_is_refused_before_anything_is_asked_for(tmp_path):
    host = Host("a", "../b")

    with pytest.raises(ClusterfnError, match="outside the chosen folder"):
        download(host, "**", tmp_path / "here")

    assert not host.asked and not list(tmp_path.iterdir())


@pytest.mark.parametrize("pattern", ["results", "results/", "results/**"])
def test_a_folders_name_means_its_content(tmp_path, pattern):
    host = Host("results/a.txt", "results/deep/b.txt", "other.txt")

    assert download(host, pattern, tmp_path) == [tmp_path / "results/a.txt", tmp_path / "results/deep/b.txt"]


@pytest.mark.parametrize("pattern", ["*.pt", "model*", "results/**", "results"])
@pytest.mark.parametrize("name", ["train.py", ".git/hooks/post-checkout", "model.pt/x"])
def test_a_name_that_was_not_asked_for_is_refused_and_nothing_is_written(tmp_path, pattern, name):
    with pytest.raises(ClusterfnError, match=re.escape(f"names a file {name!r}, which {pattern!r} does not match")):
        download(LyingHost(name, "model.pt", "results/a"), pattern, tmp_path)
    assert not list(tmp_path.iterdir())


ANYWHERE = ["", ".", "/", "..", "../a", "a/..", "a/../../b", "/etc/passwd", "//a", "a\0b", "./..", "\ud800"]
ON_WINDOWS = ["C:x", "C:/x", "a/C:x", "..\\a", "a\\b", "\\a",
              "\\\\host\\share", "a:stream", "CON", "a/nul.txt", "a. ", "a."]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "windows"),
    [*((name, windows) for name in ANYWHERE for windows in (False, True)), *((name, True) for name in ON_WINDOWS)],
)
def test_a_name_that_leads_out_or_means_more_on_windows_is_refused(name, windows):
    with pytest.raises(ClusterfnError, match="the host names a file"):
        safe_parts(name, windows=windows)


@pytest.mark.parametrize("name", ["a", "a/b.pt", "a b", "ü", "...", "..a", "-n", "a\nb", "epoch 12:30.pt", "a\\b"])
def test_an_ordinary_name_is_taken_apart(name):
    assert safe_parts(name, windows=False) == tuple(name.split("/"))


@settings(deadline=None)
@given(st.lists(st.sampled_from(["..", ".", "a", "/", "//", "\\", "\0", "C:", "b"])).map("".join))
def test_no_name_leads_out_of_the_folder(name):
    try:
        parts = safe_parts(name, windows=False)
    except ClusterfnError:
        return
    base = Path("/chosen")
    assert os.path.normpath(base.joinpath(*parts)).startswith("/chosen/")


class Piece(bytearray):
    """Bytes to which a weak reference is possible."""


def test_the_progress_of_files_is_counted_and_keeps_none_of_their_bytes(tmp_path):
    transfers, pieces = [], []

    class Full(Host):
        def get(self, path, out):
            piece = Piece(self.size)
            pieces.append(weakref.ref(piece))
            out(piece)
            reply = Reply(lambda: None)
            reply.moved = self.size
            reply.resolve(self.size)
            return reply

    fetch(Full("a", "b", size=2**16), "/work", "*", tmp_path, on_transfer=transfers.append)
    gc.collect()

    assert transfers[0].moved == transfers[0].size == 2**17
    assert [piece() for piece in pieces] == [None, None]


def test_what_was_not_fetched_is_said_with_what_fetches_it(tmp_path):
    there = ["a", "results/b"]
    with pytest.raises(ClusterfnError, match="no file that matches") as caught:
        download(Host(*there), "*.pt", tmp_path)

    assert caught.value.evidence == tuple(there)
    assert '.download("**", to=".")' in (caught.value.hint or "")
    line = not_fetched(caught.value, "*.pt", "3fe6")
    assert f"the job left {', '.join(there)}; fetch them: clusterfn pull 3fe6" in line
    assert 'clusterfn.attach("3fe6").download(2, "**", to=".")' in not_fetched(caught.value, "*.pt", "3fe6", 2)
    with pytest.raises(ClusterfnError, match="no file that matches") as nothing:
        download(Host(), "*.pt", tmp_path)
    assert "left no files" in not_fetched(nothing.value, "*.pt", "3fe6")
    lost = not_fetched(HostError("the connection was lost"), "*.pt", "3fe6")
    assert "was not fetched: the connection was lost" in lost and 'clusterfn pull 3fe6 --only "*.pt"' in lost


@pytest.mark.parametrize(
    ("left", "line"),
    [
        ([["out.txt", 3]], "left 1 file on tensor01: out.txt; clusterfn pull 3fe6 fetches it"),
        ([["a", 1], ["b/c", 2]], "left 2 files on tensor01: a, b/c; clusterfn pull 3fe6 fetches them"),
        ([["a\x1b[2J\nb\udce4", 1]], "left 1 file on tensor01: 'a\\x1b[2J\\nb\\udce4'; clusterfn pull 3fe6 fetches it"),
        (
            [[f"{n:02}", 1] for n in range(20)],
            "left 20 files or more on tensor01: 00, 01, 02 and 17 more; clusterfn pull 3fe6 fetches them",
        ),
    ],
)
def test_files_that_nobody_asked_for_are_named_in_one_line(left, line):
    assert left_behind(left, "tensor01", "3fe6d2fcf2f0d2b5") == line
