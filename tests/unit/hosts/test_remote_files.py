"""Names of files that a host tells are not trusted; how far a transfer is; and what is said of files that stay."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterfn import ClusterfnError, HostError
from clusterfn.hosts.remote_files import fetch, left_behind, not_fetched
from clusterfn.hosts.rpc.reply import Reply
from clusterfn.hosts.transfer import safe_parts
from tests.fakes.downloads import download
from tests.unit.hosts.test_downloads import Host

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
