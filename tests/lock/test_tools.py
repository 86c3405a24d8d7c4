"""Which solver is used: the user's conda, a conda-lock in PATH, one that is installed; and how it is ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import clusterfn.environment.solve
from clusterfn import LockError
from clusterfn.environment import solver_tools
from tests.lab import Lab, conda36
from tests.lock.conftest import Bench, names
from tests.waiting import until

pytestmark = pytest.mark.lab

STAND_IN = Path(clusterfn.environment.solve.__file__).with_name("stand_in_conda.py")
ROOT = Path(clusterfn.environment.solve.__file__).parents[3]


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def executable(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_the_users_mamba_solves_if_there_is_one(bench: Bench, bin_folder: Path):
    log = bin_folder / "log"
    executable(bin_folder / "mamba", f'echo "$1" >> "{log}"\nexec "{sys.executable}" "{STAND_IN}" "$@"')

    bench.lock("  - six\n")
    bench.lock("  - six\n")

    assert log.read_text().split().count("create") == 1


def test_an_old_conda_is_passed_over_aloud(bench: Bench, bin_folder: Path):
    """A real one: it has no answer to what conda-lock asks."""
    conda = bin_folder / "conda"
    conda.symlink_to(conda36.provide())

    assert "six" in names(bench.lock("  - six\n"))
    assert f"{conda} is not used (conda 4.3.16): clusterfn uses its own solver" in bench.said


def test_what_a_conda_complains_of_is_shown(bench: Bench, bin_folder: Path):
    executable(
        bin_folder / "micromamba",
        '[ "$1" = --version ] && echo 2.3.0 && exit\necho "no space for repodata" >&2; exit 3',
    )

    with pytest.raises(LockError) as caught:
        bench.lock("  - six\n")

    assert caught.value.evidence == ("no space for repodata",)


def asked(lab: Lab, tmp_path: Path, minor: str = "3.11", **variables: str) -> subprocess.CompletedProcess[str]:
    """What `solver_tools.find_interpreter` finds from a Python that has no conda-lock."""
    code = (
        "from clusterfn import LockError\nfrom clusterfn.environment.solver_tools import find_interpreter\n"
        "try: print(find_interpreter(True, lambda line: print('said:', line))[0])\n"
        "except LockError as error: print(error)\n"
    )
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    return subprocess.run(
        [lab.python(minor), "-c", code], env={**env, **variables}, capture_output=True, text=True, timeout=280
    )


def test_the_interpreter_of_a_conda_lock_in_path_is_found_behind_a_link(lab: Lab, tmp_path: Path, bin_folder: Path):
    here = Path(sys.prefix) / "bin"
    (bin_folder / "conda-lock").symlink_to(here / "conda-lock")

    done = asked(lab, tmp_path, PATH=f"{bin_folder}:/usr/bin:/bin")

    assert done.stdout.strip() == str(here / "python"), done.stdout + done.stderr


def test_where_nothing_can_be_installed_the_error_says_what_to_install(lab: Lab, tmp_path: Path):
    (tmp_path / "full").write_text("no folder can be made here")

    done = asked(lab, tmp_path, XDG_CACHE_HOME=str(tmp_path / "full"))

    assert "said: installing conda-lock and py-rattler into" in done.stdout
    assert "conda-lock, which solving needs, could not be installed" in done.stdout
    assert "next:  pip install '.[lock]'" in done.stdout


def test_a_python_too_old_for_conda_lock_says_so(lab: Lab, tmp_path: Path):
    done = asked(lab, tmp_path, "3.9", PATH=str(tmp_path))

    assert "solving needs conda-lock, which needs Python 3.10 or newer" in done.stdout


def test_a_long_installation_says_what_it_does_and_ends_with_its_client(
    tmp_path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    says = "Collecting rattler" + ", more" * 500
    executable(bin_folder / "slow-python", f"echo $$ > '{tmp_path}/pid'; echo {says}; exec sleep 600")
    monkeypatch.setattr(solver_tools, "PATIENCE_S", 0.2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(bin_folder / "slow-python"))
    monkeypatch.setattr(solver_tools.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    said = []

    def say(line: str) -> None:
        said.append(line)
        if "Collecting" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solver_tools.find_interpreter(True, say)

    assert re.match(r"installing conda-lock and py-rattler into .*, once \(220 MB", said[0])
    assert re.match(r"still installing conda-lock \(\d+ s\): Collecting rattler, more.*…$", said[-1])
    assert len(said[-1]) < 150  # pip names all packages in one line
    assert not is_running(int((tmp_path / "pid").read_text()))
    assert not list((tmp_path / "clusterfn" / "solver").glob(".*"))


@pytest.mark.long
def test_conda_lock_is_installed_once_and_solves(
    lab: Lab, tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    first, second = asked(lab, tmp_path), asked(lab, tmp_path)
    assert first.stdout.count("said: installing") == 1 and "said:" not in second.stdout
    python = second.stdout.strip()
    assert first.stdout.splitlines()[-1] == python

    monkeypatch.setattr(solver_tools, "find_interpreter", lambda *_: (python, "-I"))
    assert "six" in names(bench.lock("  - six\n"))


INTERRUPTED = """
import sys
from pathlib import Path
from clusterfn.environment import environment_yml
from clusterfn.environment.conda_solver import SolveTarget
from clusterfn.environment.solver import lock_for
try:
    lock_for(environment_yml.read_file(Path(sys.argv[1])), SolveTarget("linux-64", "2.28", None, "3.11"), print)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_the_solver_and_its_conda_end_with_whoever_wants_the_lock(
    bench: Bench, bin_folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
):
    pid_file, temporary = bin_folder / "pid", bench.folder / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    # exec: the process that is recorded is the one that would stay.
    version = '[ "$1" = --version ] && echo 2.3.0 && exit'
    executable(
        bin_folder / "micromamba",
        f"{version}\necho $$ > {pid_file}.part; mv {pid_file}.part {pid_file}; exec sleep 600",
    )
    path = bench.write("dependencies: [six]\n")
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(path)], stdout=subprocess.PIPE, text=True) as process:
        until(pid_file.exists)
        process.send_signal(number)
        out, _ = process.communicate(timeout=150)

    assert out.endswith("interrupted\n") is (number == signal.SIGINT)
    pid = int(pid_file.read_text())
    until(lambda: not is_running(pid))
    until(lambda: not list(temporary.iterdir()))
    assert not (bench.folder / "environment.conda-lock.yml").exists()


def test_a_long_solve_says_what_it_waits_for_and_leaves_no_temporary_files(
    bench: Bench, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    temporary = bench.folder / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("clusterfn.environment.conda_solver.PATIENCE_S", 0.02)

    bench.lock("  - six\n")

    assert list(temporary.iterdir()) == []
    assert any(line.startswith("still solving environment.yml (") for line in bench.said)
    assert any(line.endswith(": conda's packages") for line in bench.said), bench.said


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
