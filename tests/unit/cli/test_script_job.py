"""`clusterfn run SCRIPT.py`: what its job is called."""

from __future__ import annotations

import pytest

from clusterfn.cli import main, parser, run
from clusterfn.cli.submission import call_options


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
