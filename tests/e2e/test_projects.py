"""Environments from a project's own files, on the host with Python 3.6: wheels by uv, Python from the lab's channel."""

from __future__ import annotations

import pwd
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn import EnvironmentBuildError, LockError, cluster
from clusterfn.environment import uv
from tests.e2e.conftest import MINOR, Hosts, give_to

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(MINOR not in ("3.9", "3.10", "3.11", "3.12", "3.13"), reason="the channel has no such Python"),
]
SIX = "six==1.17.0 --hash=sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274\n"
PYPROJECT = """\
[project]
name = "app"
version = "0.1"
requires-python = ">=3.9"
dependencies = ["helper", "attrs>=23", "colorama; sys_platform == 'win32'"]

[project.optional-dependencies]
names = ["idna==3.10"]

[tool.uv.sources]
helper = {path = "helper", editable = true}
"""
HELPER = '[project]\nname = "helper"\nversion = "0.1"\ndependencies = ["six==1.17.0"]\n'
SOURCE = 'import six\n\n\ndef shout(text):\n    return six.ensure_str(text).upper() + " " + six.__version__\n'


def report() -> tuple[str, str, bool, tuple[int, int]]:
    import importlib.util
    import sys

    import attr  # noqa: F401
    import helper
    import idna

    return helper.shout("six"), idna.__version__, importlib.util.find_spec("colorama") is None, sys.version_info[:2]


def only_six() -> str:
    import six

    return str(six.__version__)


for each in (report, only_six):
    each.__module__ = "__main__"
REPORTED = ("SIX 1.17.0", "3.10", True, tuple(map(int, MINOR.split("."))))


@pytest.fixture
def project(lab: Any, hosts: Hosts, channel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a pyproject.toml and a local package, and a root of environments that is empty."""
    root = Path(pwd.getpwnam("cfbash").pw_dir) / f"e2e-{secrets.token_hex(4)}"
    root.mkdir(mode=0o700)
    give_to("cfbash", root)
    condarc = tmp_path / "condarc"
    condarc.write_text(f"custom_multichannels:\n  conda-forge: [{channel.url}]\n")
    monkeypatch.setenv("CONDARC", str(condarc))
    folder = tmp_path / "project"
    (folder / "helper" / "helper").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "helper" / "pyproject.toml").write_text(HELPER)
    (folder / "helper" / "helper" / "__init__.py").write_text(SOURCE)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder / "helper"))
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, f"env_root: {root}", ("tensor01", "slurm"))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    yield folder
    shutil.rmtree(root, ignore_errors=True)


def uv_lock(folder: Path) -> None:
    """Write uv.lock as the user does."""
    done = subprocess.run(
        [uv.find_uv(print), "lock", "--quiet"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("host", ["tensor01", pytest.param("slurm", marks=pytest.mark.long)])
def test_a_pyproject_with_an_extra_a_marker_and_a_local_package_cold_and_warm(project, host, capsys):
    function = cluster(host=host, environment="pyproject.toml[names]")(report)

    assert function() == REPORTED

    cold = capsys.readouterr().err
    assert "pyproject-names.conda-lock.yml does not exist yet" in cold
    assert "helper: clusterfn sends local packages as source" in cold
    locked = (project / "pyproject-names.conda-lock.yml").read_text()
    assert "idna-3.10" in locked and "colorama" not in locked and "helper" not in locked
    assert function() == REPORTED
    assert "solving" not in capsys.readouterr().err


def test_a_uv_lock_is_used_as_it_is_and_refused_when_it_is_old(project):
    uv_lock(project)

    assert cluster(host="tensor01", environment="uv.lock[names]")(report)() == REPORTED

    (project / "pyproject.toml").write_text(PYPROJECT.replace("idna==3.10", "idna==3.9"))
    with pytest.raises((LockError, EnvironmentBuildError), match=r"uv\.lock is out of date"):
        cluster(host="tensor01", environment="uv.lock[names]")(report)()


def test_a_requirements_txt_with_hashes(project):
    (project / "requirements.txt").write_text(SIX)

    assert cluster(host="tensor01", environment="requirements.txt")(only_six)() == "1.17.0"

    (project / "requirements.txt").write_text(SIX.replace("4721", "0000"))
    with pytest.raises(LockError, match=r"six 1\.17\.0 has another hash than the file allows"):
        cluster(host="tensor01", environment="requirements.txt")(only_six)()


def test_the_command_locks_builds_and_shows_a_project(project, capsys):
    from clusterfn.cli import main

    assert main(["env", "build", "pyproject.toml[names]", "tensor01"]) == 0
    assert main(["env", "lock", "--check", "pyproject.toml[names]", "tensor01", "--gpus", "0"]) == 0
    assert main(["env", "show", "pyproject.toml[names]", "tensor01"]) == 0

    assert "idna" in capsys.readouterr().out
