"""An agent, in a process of its own, that is told where a scheduler's commands are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn.config.spec import Host
from clusterfn.hosts.connection import HostConnection, connect
from tests.waiting import WAIT_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="agents run on Unix")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that has a `sbatch` which prints a variable."""
    there = tmp_path / "slurm bin"
    there.mkdir()
    (there / "sbatch").write_text('#!/bin/sh\necho "$SLURM_CONF"\n')
    (there / "sbatch").chmod(0o755)
    return there


def host(tmp_path: Path, **keys: object) -> Host:
    made = Host("here", "", "slurm", "x:1", transport="local", root=str(tmp_path / "root"))
    return made._replace(**keys)


def says(connection: HostConnection) -> bytes:
    return connection.run(["sbatch"]).result(WAIT_S).out


def test_the_hello_brings_folders_and_variables_and_says_what_is_lacking(tmp_path, folder: Path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere:" + str(Path(sys.executable).parent))
    monkeypatch.setenv("HOME", str(tmp_path))

    without = connect(host(tmp_path), have=[str(folder)])
    told = connect(host(tmp_path, scheduler_path=("~/slurm bin",), scheduler_env={"SLURM_CONF": "/a"}))

    assert without.facts.lacking == ("sbatch",)
    assert told.facts.lacking == ()
    assert says(told) == b"/a\n"
    without.use_commands(host(tmp_path, scheduler_path=(str(folder),), scheduler_env={"SLURM_CONF": "/b"})).result(
        WAIT_S
    )
    assert (without.facts.lacking, without.facts.have) == ((), (True,))
    assert says(without) == b"/b\n"
    for each in (without, told):
        each.close()


def test_a_job_finds_the_commands_last_and_hides_nothing_by_them(tmp_path, folder: Path):
    from clusterfn.scheduler import job_script
    from tests.golden.samples import job

    (folder / "python3").symlink_to("/bin/false")
    made = job(host(tmp_path, scheduler_path=(str(folder), "~/b c")))
    lines = [line for line in job_script.job_script(made).splitlines() if line.startswith("PATH=")]

    shown = subprocess.run(
        ["/bin/sh", "-c", f'{lines[0]}; echo "$PATH"'],
        env={"PATH": "/usr/bin", "HOME": "/h"},
        stdout=subprocess.PIPE,
        text=True,
    )

    assert shown.stdout == f"/usr/bin:{folder}:/h/b c\n"
    assert job_script.job_script(job(host(tmp_path))).count("PATH=$PATH") == 0
