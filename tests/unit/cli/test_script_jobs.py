"""What the job of a script is called, and what is said about a command that has failed, by its stderr or its words."""

from __future__ import annotations

import argparse
import subprocess

import pytest

from clusterfn.cli import main, parser, run
from clusterfn.cli.submission import advise, call_options
from clusterfn.errors import CommandFailed
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


def test_a_command_can_ask_to_be_notified_of_its_end():
    given = parser.make_parser().read(["run", "--notify", "touch x", "--", "ls"])

    assert call_options(given)["notify"] == "touch x"
