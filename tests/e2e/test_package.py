"""Wheel and sdist as a release has them: they install on each promised Python, and run a call from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself"),
]
NOT_SENT = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".lab", ".hypothesis")
SMOKE = """
import importlib.resources
import clusterfn
from clusterfn import cluster

@cluster(host="local")
def divide(a, b):
    return a / b

print(clusterfn.__file__, divide(1, 4), divide.map([1, 2], b=2).results())
try:
    divide(1, 0)
except ZeroDivisionError as error:
    print("raised", type(error).__name__)
print("py.typed", (importlib.resources.files("clusterfn") / "py.typed").is_file())
"""


def ran(*argv: object, cwd: Path, **env: str) -> str:
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CLUSTERFN_"))}
    done = subprocess.run(
        [str(each) for each in argv], cwd=cwd, env={**keep, **env}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def interpreter(minor: int) -> Path:
    root = Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv")))
    for found in [*sorted(root.glob(f"versions/3.{minor}.*/bin/python3.{minor}")), shutil.which(f"python3.{minor}")]:
        if found:
            return Path(found)
    pytest.skip(f"there is no Python 3.{minor} on this machine")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, made as `make dist` does."""
    folder = tmp_path_factory.mktemp("release")
    shutil.copytree(REPOSITORY, folder / "sources", ignore=shutil.ignore_patterns(*NOT_SENT))
    ran(sys.executable, "-m", "venv", "tools", cwd=folder)
    ran("tools/bin/python", "-m", "pip", "install", "-q", "build", cwd=folder)
    ran("tools/bin/python", "-m", "build", "--outdir", "dist", "sources", cwd=folder)
    return folder / "dist"


def test_the_metadata_is_complete_and_the_sdist_too(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = message_from_bytes(archive.read(name))
    with tarfile.open(sdist) as files:
        names = {member.name.partition("/")[2] for member in files.getmembers()}

    assert (told["License-Expression"], told["Author"]) == ("MIT", "The clusterfn developers")
    assert told["Requires-Python"] == ">=3.9" and "slurm" in told["Keywords"] and told["Summary"]
    assert "](docs/" not in told.get_payload() and "@cluster" in told.get_payload()
    assert {"CHANGELOG.md", "CITATION.cff", "docs/tutorial.md", "tests/conftest.py", "examples/first.py"} <= names


@pytest.mark.parametrize(("minor", "kind"), [(9, "whl"), (10, "whl"), (11, "tar.gz"), (12, "whl"), (13, "whl")])
def test_it_installs_and_runs_a_call(built: Path, tmp_path: Path, minor: int, kind: str) -> None:
    (package,) = built.glob(f"*.{kind}")
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "smoke.py").write_text(SMOKE)
    ran(interpreter(minor), "-m", "venv", "v", cwd=tmp_path)
    ran("v/bin/python", "-m", "pip", "install", "-q", package, cwd=tmp_path)

    assert ran("v/bin/clusterfn", "--version", cwd=tmp_path, HOME=str(home)).startswith("clusterfn ")
    said = ran("v/bin/python", "smoke.py", cwd=tmp_path, HOME=str(home))

    assert f"{tmp_path}/v/" in said and "0.25 [0.5, 1.0]\n" in said
    assert "raised ZeroDivisionError\n" in said and "py.typed True\n" in said
