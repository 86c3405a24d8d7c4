"""Values that another version of a package made: those of benchmarks/survey/pairs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.fixtures import roundtrip
from tests.unit.bridge.serialization.test_calls import TORCH

FIXTURES = Path(roundtrip.__file__).parent
MODULES = FIXTURES.parents[1] / "benchmarks" / "survey" / "pairs"
OLD_PANDAS = ("numpy==1.26.4", "pandas==2.2.3")


def trip(python: str, how: str, script: Path, path: Path) -> str:
    """What one side says, with these packages."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CLUSTERFN"))}
    environ["PYTHONPATH"] = str(roundtrip.shared_site_packages())
    argv = [python, str(FIXTURES / "pairs_trip.py"), how, str(script), str(path)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def made_by_pip(folder: Path, packages: tuple[str, ...]) -> str:
    """An interpreter of a new environment with these packages."""
    subprocess.run([TORCH, "-m", "venv", str(folder / "old")], check=True)
    python = str(folder / "old" / "bin" / "python")
    if subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=False).returncode:
        pytest.skip(f"pip finds no {packages} for this Python")
    return python


# Written by `pairs_trip.py write` with these versions; what a version makes of its own accord differs in the second
# set from what the installed one makes.
@pytest.mark.parametrize(
    ("packed", "differs"),
    [("numpy-1.26.4", set()), ("pandas-1.5.3", {"an empty frame", "dummies", "value counts"}), ("pandas-2.2.3", set())],
)
def test_what_another_version_packed_is_read(packed: str, differs: set[str]):
    module = packed.partition("-")[0]
    if not TORCH.exists():
        pytest.skip("the lab's torch environment, which has pandas, is not there")

    found = json.loads(trip(str(TORCH), "read", MODULES / f"{module}.py", FIXTURES / "packed" / f"{packed}.pkl.gz"))

    assert {name: said for name, said in found.items() if name not in differs} == {}


@pytest.mark.skipif(not TORCH.exists(), reason="the lab's torch environment, which has pandas, is not there")
def test_tables_go_and_come_back_within_one_version(tmp_path: Path):
    script, path = MODULES / "pandas.py", tmp_path / "values"
    for how in ("write", "back"):
        trip(str(TORCH), how, script, path)

    assert json.loads(trip(str(TORCH), "read", script, path)) == {}


MADE_HERE = pytest.param("pandas", marks=pytest.mark.long)  # by pip


@pytest.mark.lab
@pytest.mark.parametrize("module", ["numpy", MADE_HERE])
@pytest.mark.timeout(900)
def test_values_go_between_two_versions_and_come_back(module: str, older: str, tmp_path: Path):
    here = str(TORCH)
    old = made_by_pip(tmp_path, OLD_PANDAS) if module == "pandas" else older
    for first, second in ((here, old), (old, here)):
        path, script = tmp_path / "values", MODULES / f"{module}.py"
        trip(first, "write", script, path)
        result = trip(second, "read", script, path)
        trip(second, "back", script, path)
        came = trip(first, "read", script, path)

        assert json.loads(result) == {}
        assert json.loads(came) == {}
