"""The copy of a project in which a command runs, and which jobs that it has submitted there may still need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import clusterfn.hosts.serialization  # noqa: F401 - it makes the package that a worker has there
from clusterfn.bridge.worker import command


class Scheduler:
    """One of whose jobs one has been submitted here."""

    def jobs_in(self, folder: str) -> list[str]:
        return ["7"]


@pytest.mark.parametrize(
    ("line", "words", "kept_for"),
    [
        ("sbatch next.sh # \udce9", [], "job 7"),
        ("", ["bash", "submits.sh"], "job 7"),
        ("", ["head", "-c", "9", "/dev/zero"], ""),
        ("", ["cat", "pipe"], ""),
    ],
)
def test_only_the_files_of_a_command_are_searched_for_what_submits_jobs(
    line: str, words: list[str], kept_for: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "scheduler_of_job", lambda _: Scheduler())
    (tmp_path / "submits.sh").write_text("sbatch next.sh\n")
    os.mkfifo("pipe")

    assert command._jobs_submitted_here({"line": line, "words": words}) == kept_for
