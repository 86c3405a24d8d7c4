"""What SLURM may start again: docs/explanation/outcomes.md has one table, which is what each kind of call asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn.config import config_file
from clusterfn.errors import ConfigError
from clusterfn.scheduler.slurm.submit import Slurm
from tests.golden.samples import job

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "outcomes.md"
# A call -> further lines of its host, its options, and the #SBATCH line of its script.
CALLS: dict[str, tuple[str, dict[str, object], str | None]] = {
    "function, map, command, session": ("", {}, None),
    "with `retries=`": ("slurm: {no-requeue: true}", {"retries": 2}, None),
    "with `requeue=`": ("", {"requeue": ["timeout"], "time": "1h"}, None),
    "file with `#SBATCH --requeue`": ("slurm: {no-requeue: true}", {}, "--requeue"),
    "file with `#SBATCH --no-requeue`": ("slurm: {requeue: true}", {}, "--no-requeue"),
    "file whose `#SBATCH` lines say neither": ("slurm: {account: lab}", {"slurm": {"qos": "long"}}, "-p gpu"),
    "host with `slurm: {requeue: true}`": ("slurm: {requeue: true}", {}, None),
    "host with `slurm: {requeue: null}`": ("slurm: {requeue: null}", {}, None),
}
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text(encoding="utf-8").splitlines()]
TABLE = {row[0]: row[1:3] for row in ROWS if row and row[0] in CALLS}


def options_of(call: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the words for sbatch, and at last whether spec.json says that the job may be started again."""
    host, options, line = CALLS[call]
    (folder / "clusterfn.yml").write_text(f"hosts:\n  hpc:\n    scheduler: slurm\n    {host}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(folder / "clusterfn.yml"))
    monkeypatch.chdir(folder)
    (folder / "job.sbatch").write_text(f"#!/bin/sh\n#SBATCH {line}\n" if line else "#!/bin/sh\n")
    parsed = clusterfn.command(["./job.sbatch"], **options).options
    made = job(config_file.hosts_of_call(parsed)[0].called, retries=parsed.retries, requeue=parsed.requeue)
    return [*Slurm(made.host, "ada").submission(made).argv, str(json.loads(made.to_json()).get("restarts", False))]


@pytest.mark.parametrize("call", CALLS)
def test_slurm_starts_again_what_the_page_says(call: str, tmp_path, monkeypatch):
    flag, may_restart = TABLE[call]

    words = options_of(call, tmp_path, monkeypatch)

    assert [f"`{word}`" for word in words if word.endswith("requeue")] == [flag] * bool(flag)
    assert words[-1] == str(may_restart != "no")


@pytest.mark.parametrize(
    ("host", "options", "line", "flag"),
    [
        ("slurm: {requeue: true}", {}, "--no-requeue --requeue", "--requeue"),
        ("slurm: {no-requeue: true}", {}, "--no-requeue --requeue", "--requeue"),
        ("slurm: {requeue: true}", {"slurm": {"requeue": True}}, "--no-requeue", "--requeue"),
        ("slurm: {no-requeue: true}", {"slurm": {"no-requeue": True}}, "--requeue", "--no-requeue"),
    ],
)
def test_the_last_word_counts_and_that_of_the_call_is_the_last(host, options, line, flag, tmp_path, monkeypatch):
    monkeypatch.setitem(CALLS, "this", (host, options, line))

    words = options_of("this", tmp_path, monkeypatch)

    assert [word for word in words if word.endswith("requeue")] == [flag]


def test_options_of_a_call_are_merged_into_those_of_a_script(tmp_path, monkeypatch):
    words = options_of("file whose `#SBATCH` lines say neither", tmp_path, monkeypatch)

    assert {"--account=lab", "--qos=long", "--partition=gpu"} <= set(words)


def test_a_script_that_would_have_another_task_requeued_is_rejected(tmp_path, monkeypatch):
    """Elements of a map take its values in any order, so the numbers of SLURM are others."""
    options_of("function, map, command, session", tmp_path, monkeypatch)
    asks = "scontrol requeue ${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    (tmp_path / "job.sbatch").write_text(f"#!/bin/sh\n#SBATCH --array=0-3\n{asks}\n")

    with pytest.raises(ConfigError, match="requeued by its number in the array") as caught:
        clusterfn.command(["./job.sbatch"])

    assert caught.value.hint == "write in it: scontrol requeue $SLURM_JOB_ID"


@pytest.mark.parametrize(
    ("lines", "is_taken_away"),
    [
        ("#SBATCH --array=0-3\n#SBATCH --signal=SIGUSR1@90\npython train.py", True),
        ("#SBATCH --array=0-3\npython train.py", False),
        ("#SBATCH --signal=SIGUSR1@90\npython train.py", False),
        ("#SBATCH --array=0-3\n#SBATCH --signal=SIGUSR1@90\nmkdir $SLURM_ARRAY_JOB_ID", False),
    ],
)
def test_a_library_that_requeues_its_task_finds_no_number_of_another_one(tmp_path, monkeypatch, lines, is_taken_away):
    """Lightning and submitit take SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID where both are set, else SLURM_JOB_ID."""
    options_of("function, map, command, session", tmp_path, monkeypatch)
    (tmp_path / "job.sbatch").write_text(f"#!/bin/sh\n{lines}\n")

    called: Any = clusterfn.command(["./job.sbatch"]).__wrapped__

    env = called.args[0]["env"]
    assert ("SLURM_ARRAY_JOB_ID" in env and env["SLURM_ARRAY_JOB_ID"] is None) is is_taken_away
