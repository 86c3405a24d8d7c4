"""The standard input of `clusterfn run`: what is read of it, and what is left alone."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
from pathlib import Path

import pytest

from clusterfn.cli import run
from clusterfn.hosts import spoken_wait


@pytest.fixture
def standard(monkeypatch):
    """Make a descriptor the standard input."""
    with contextlib.ExitStack() as open_files:

        def give(descriptor: int) -> None:
            monkeypatch.setattr(sys, "stdin", open_files.enter_context(os.fdopen(descriptor)))

        yield give


def piped(text: bytes) -> int:
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb") as end:
        end.write(text)
    return ours


def test_a_pipe_is_read_to_its_end_and_said(standard, capsys):
    standard(piped(b"one\n\xff"))

    copied = run.read_input(None)

    assert Path(copied or "").read_bytes() == b"one\n\xff"
    assert "the command gets 5 bytes of standard input" in capsys.readouterr().err


def test_of_a_file_the_rest_is_read(standard, tmp_path):
    (tmp_path / "input").write_text("one\ntwo\n")
    descriptor = os.open(tmp_path / "input", os.O_RDONLY)
    os.read(descriptor, 4)
    standard(descriptor)

    assert Path(run.read_input(None) or "").read_text() == "two\n"


def nothing() -> int:
    return piped(b"")


def terminal() -> int:
    typed, ours = os.openpty()
    os.write(typed, b"one\n\x04\x04")
    return ours


def null() -> int:
    return os.open(os.devnull, os.O_RDONLY)


def inherited_socket() -> int:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"one")
    return ours.detach()


@pytest.mark.skipif(sys.platform == "win32", reason="of Unix")
@pytest.mark.parametrize("made", [nothing, terminal, null, inherited_socket])
def test_nothing_is_read_where_nobody_has_piped_anything(standard, made, capsys):
    standard(made())

    assert run.read_input(None) is None
    assert capsys.readouterr().err == ""


def test_a_file_that_is_named_counts_instead_and_there_may_be_no_input_at_all(standard, monkeypatch):
    standard(piped(b"one"))
    assert run.read_input("input.txt") == "input.txt"
    monkeypatch.setattr(sys, "stdin", None)
    assert run.read_input(None) is None


def test_a_pipe_without_an_end_is_said(standard, monkeypatch):
    monkeypatch.setattr(spoken_wait, "SPEAK_AFTER_S", 0.02)
    ours, theirs = os.pipe()
    standard(ours)

    class Ending(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            if text.endswith("\n"):
                os.close(theirs)
            return written

    monkeypatch.setattr(sys, "stderr", Ending())

    assert run.read_input(None) is None
    assert "add < /dev/null if the command needs none" in sys.stderr.getvalue()
