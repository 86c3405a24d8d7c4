"""What the job of a script is called, what is said of a failed command, and what it reads of its standard input."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn.cli import main, parser, run
from clusterfn.cli.submission import advise, call_options
from clusterfn.errors import CommandFailed
from clusterfn.hosts import spoken_wait
from clusterfn.packing.project.model import Project


@pytest.fixture
def project(tmp_path):
    for name in ("data/train.csv", "sent/x.csv", "train.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1,2\n")
    (tmp_path / ".gitignore").write_text("data/\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return Project(tmp_path)


def advice(project, stderr, status=1, script_words=(), command_words=None):
    error = CommandFailed("train: exit status", evidence=stderr.splitlines())
    error.exit_status = status
    given = argparse.Namespace(script_words=list(script_words), command_words=command_words)
    return advise(error, project, given) or ""


@pytest.mark.parametrize(
    ("stderr", "name"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'", "data/train.csv"),
        ("cat: data/train.csv: No such file or directory", "data/train.csv"),
        ("ls: cannot access 'data': No such file or directory", "data"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/new/model.pt'", "data"),
    ],
)
def test_a_file_that_git_keeps_out_is_named_if_the_command_misses_it(project, stderr, name):
    assert advice(project, stderr).startswith(f"{name} is here, but was not sent: git ignores it")


@pytest.mark.parametrize(
    "stderr",
    ["cat: sent/new.csv: No such file or directory",
     "cat: sent/x.csv: No such file or directory", "open: nowhere.csv: No such file or directory", "loading data",
     "ls: cannot access '/data': No such file or directory", "No such file or directory: '..'"],
)  # fmt: skip
def test_nothing_is_said_of_files_that_were_sent_or_are_not_here(project, stderr):
    assert advice(project, stderr) == ""


@pytest.mark.parametrize(
    ("stderr", "said"),
    [("bash: line 1: conda: command not found", "--environment conda:NAME"),
     ("CondaError: Run 'conda init' before 'conda activate'", "--environment conda:NAME"),
     ("job.sh: line 9: module: command not found", "modules: [NAME]"),
     ("Requested operation is presently disabled for job 7", "--requeue preempted"),
     ("./train.sh: line 39: srun: command not found", "srun() {"),
     ("job.sh: line 26: cd: /home/ada/project: No such file or directory", "leave out that cd"),
     ("sh: 3: cd: can't cd to /home/ada/project", "leave out that cd"),
     ("KeyError: 'DATASET'", '--env DATASET="$DATASET"'),
     ("job.sh: line 3: DATASET: unbound variable", "--env DATASET"),
     # A script goes on after these, so what ends it is what counts.
     ("conda: command not found\nsrun: command not found", "srun() {"),
     ("conda: command not found\nopen: data/train.csv: No such file\nconda: command not found", "git ignores it")],
)  # fmt: skip
def test_what_a_login_shell_or_this_machine_would_have_is_set_elsewhere(project, stderr, said, monkeypatch):
    monkeypatch.setenv("DATASET", "/data")
    assert said in advice(project, stderr, 127)
    assert advice(project, "KeyError: 'label'") == ""


@pytest.mark.parametrize("words", [["--lr", "1", "--gpus", "1"], ["--gpus=1"], ["--outputs", "*.pt"]])
def test_an_option_of_clusterfn_that_the_script_rejects_is_named(project, words):
    stray = next(word for word in words if word[2:6] in ("gpus", "outp"))
    assert advice(project, "unrecognized arguments", 2, words).startswith(f"{stray} went to the command: options of")
    assert "before --" in advice(project, "", 2, (), ["train.py", *words])
    assert advice(project, "", 1, words) == ""
    assert advice(project, "", 2, ["--lr", "1"]) == ""


@pytest.mark.parametrize(
    ("file", "name"),
    [("train.py", "train"), ("01_train.py", "_01_train"), ("train-2.1.py", "train-2.1"), ("my script.py", "my_script")],
)
def test_a_script_of_any_name_gives_its_job_a_name_that_fits(file, name, tmp_path, monkeypatch):
    (tmp_path / file).write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    sent = []

    def send(called, *_, **__):
        sent.append(called.__name__)
        return 0

    monkeypatch.setattr(run, "start_detached", send)

    assert main(["run", "--detach", file]) == 0
    assert sent == [name]


def test_a_command_can_ask_to_be_notified_of_its_end_and_for_folders_in_its_image():
    given = parser.make_parser().read(["run", "--notify", "touch x", "--binds", "/a", "--bind", "/b:/c", "--", "ls"])

    assert call_options(given) == {"notify": "touch x", "binds": ["/a", "/b:/c"]}


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
