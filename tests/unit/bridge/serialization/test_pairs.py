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


def trip(python: str, how: str, module: str, *paths: Path) -> list[dict[str, str]]:
    """What one side says of each file that it reads, with these packages."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CLUSTERFN"))}
    environ["PYTHONPATH"] = str(roundtrip.shared_site_packages())
    argv = [python, str(FIXTURES / "pairs_trip.py"), how, str(MODULES / f"{module}.py"), *map(str, paths)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def made_by_pip(folder: Path, packages: tuple[str, ...]) -> str:
    """An interpreter of a new environment with these packages."""
    subprocess.run([TORCH, "-m", "venv", str(folder / "old")], check=True)
    python = str(folder / "old" / "bin" / "python")
    if subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=False).returncode:
        pytest.skip(f"pip finds no {packages} for this Python")
    return python


# Written by `pairs_trip.py write` with these versions; what a version makes of its own accord differs in the second
# set from what the installed one makes.
PACKED = {
    "numpy": {"numpy-1.26.4": set()},
    "pandas": {"pandas-1.5.3": {"an empty frame", "dummies", "value counts"}, "pandas-2.2.3": set()},
}
needs_torch = pytest.mark.skipif(
    not TORCH.exists(), reason="the lab's torch environment, which has pandas, is not there"
)


@needs_torch
@pytest.mark.parametrize("module", PACKED)
def test_what_another_version_packed_is_read(module: str):
    files = [FIXTURES / "packed" / f"{packed}.pkl.gz" for packed in PACKED[module]]

    for found, differs in zip(trip(str(TORCH), "read", module, *files), PACKED[module].values()):
        assert {name: said for name, said in found.items() if name not in differs} == {}


@needs_torch
def test_tables_go_and_come_back_within_one_version(tmp_path: Path):
    trip(str(TORCH), "write", "pandas", tmp_path / "values")

    assert trip(str(TORCH), "back+read", "pandas", tmp_path / "values") == [{}]


MADE_HERE = pytest.param("pandas", marks=pytest.mark.long)  # by pip


@pytest.mark.lab
@pytest.mark.parametrize("module", ["numpy", MADE_HERE])
@pytest.mark.timeout(900)
def test_values_go_between_two_versions_and_come_back(module: str, older: str, tmp_path: Path):
    here = str(TORCH)
    old = made_by_pip(tmp_path, OLD_PANDAS) if module == "pandas" else older
    for first, second in ((here, old), (old, here)):
        path = tmp_path / "values"
        trip(first, "write", module, path)

        assert trip(second, "read+back", module, path) == [{}]
        assert trip(first, "read", module, path) == [{}]
