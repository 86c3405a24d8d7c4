"""SLURM on the host: what its commands inherit, as a login of its user may export anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn.bridge.schedulers.base import HostScheduler
from clusterfn.bridge.schedulers.registry import scheduler_named

OBEYED = {
    "SLURM_CLUSTERS": "other", "SQUEUE_PARTITION": "short", "SCANCEL_INTERACTIVE": "1", "SCONTROL_FUTURE": "1",
    "SLURM_TIME_FORMAT": "relative",
}  # fmt: skip
NEEDED = {"SLURM_CONF": "/etc/a.conf", "SLURM_CONF_SERVER": "ctl", "SLURM_JWT": "token", "MUNGE_SOCKET": "/run/m"}


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostScheduler:
    for name in ("squeue", "scancel", "scontrol"):
        (tmp_path / name).write_text(f"#!/bin/sh\nenv >'{tmp_path}/{name}.env'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, text in {**OBEYED, **NEEDED, "SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, text)
    return scheduler_named("slurm")


def inherited(tmp_path: Path, program: str) -> set[str]:
    path = tmp_path / f"{program}.env"
    names = {line.partition("=")[0] for line in path.read_text().splitlines()}
    path.unlink()
    return names


def test_no_command_obeys_what_a_login_exports_and_all_know_where_slurm_is(
    scheduler: HostScheduler, tmp_path: Path
) -> None:
    calls = {
        "squeue": [lambda: scheduler.listed_jobs("")],
        "scancel": [scheduler.cancel_waiting_elements],
        "scontrol": [
            scheduler.requeue, lambda: scheduler.ending(str(tmp_path / "log")), lambda: scheduler.node_address("n1"),
            lambda: scheduler.release_elements("7", [1], "", ""),
        ],
    }  # fmt: skip
    for program, several in calls.items():
        for call in several:
            call()  # type: ignore[operator]
            seen = inherited(tmp_path, program)
            assert not seen & OBEYED.keys() and seen >= NEEDED.keys(), program
