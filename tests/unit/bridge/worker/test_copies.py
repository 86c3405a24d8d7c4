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
        (": sbatch \udce9", [], "job 7"),
        ("", ["sh", "submits.sh"], "job 7"),
        ("", ["true", "/dev/zero"], ""),
        ("", ["true", "pipe"], ""),
    ],
)
def test_only_the_files_of_a_command_are_searched_for_what_submits_jobs(
    line: str,
    words: list[str],
    kept_for: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project, work = tmp_path / "project", tmp_path / "work"
    project.mkdir()
    (project / "submits.sh").write_text(": sbatch next.sh\n")
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(command, "scheduler_of_job", lambda _: Scheduler())
    os.mkfifo("pipe")

    command.run({"line": line, "words": words, "shown": "it", "project": str(project)}, {})

    assert (work / "submits.sh").exists() is bool(kept_for)
    assert capsys.readouterr().err == (
        f"clusterfn: the project's files stay in {work} for {kept_for}\n" * bool(kept_for)
    )
