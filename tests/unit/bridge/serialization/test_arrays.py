"""Tensors, indexes and tables, there and back, within and between versions of their packages, in the torch venv."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import roundtrip
from tests.unit.bridge.serialization.test_calls import CALLS, TORCH, version

SCRIPTS = ["tensors_script.py", "indexes_script.py"]
pytestmark = pytest.mark.skipif(not TORCH.exists(), reason="the lab's torch environment is not there")


def broken(report: dict[str, str]) -> dict[str, str]:
    """What did not come out as promised, and what was printed about it."""
    failed = {promise: how for promise, how in report.items() if how != "kept" and promise != "*said*"}
    return {**failed, "*said*": report["*said*"]} if failed else {}


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_libraries_hold_goes_and_comes_back(script: str, tmp_path: Path):
    assert broken(roundtrip.run(str(TORCH), [str(CALLS / script)], tmp_path, CALLS)) == {}


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS)
def test_it_goes_in_calls_whose_code_is_text_too(script: str, tmp_path: Path):
    other = "3.10" if version(str(TORCH)) != "3.10" else "3.11"
    report = roundtrip.run(str(TORCH), [str(CALLS / script)], tmp_path, CALLS, there=(str(TORCH), other))

    assert broken(report) == {}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_optimisers_go_and_come_back_with_what_they_optimise(tmp_path: Path):
    assert broken(roundtrip.run(str(TORCH), [str(CALLS / "optimisers_script.py")], tmp_path, CALLS)) == {}


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.parametrize("new_there", [True, False], ids=["from numpy 1", "to numpy 1"])
def test_numpy_1_and_2_read_each_other(new_there: bool, older: str, tmp_path: Path):
    here, there = (older, str(TORCH)) if new_there else (str(TORCH), older)

    report = roundtrip.run(
        here, [str(CALLS / "numbers_script.py")], tmp_path, CALLS, there=(there, version(str(TORCH)))
    )

    failed = {promise for promise in broken(report) if promise != "*said*"}
    assert failed <= {"an array of variable texts", "a function in which errors are ignored"}


@pytest.mark.long
def test_a_caller_without_the_library_gets_plain_data_or_its_name(tmp_path: Path):
    there = (str(TORCH), version(str(TORCH)))
    # -S: the tests' own environment has numpy
    report = roundtrip.run(sys.executable, ["-S", str(CALLS / "without_libraries.py")], tmp_path, CALLS, there=there)

    assert broken(report) == {}


@pytest.mark.lab
@pytest.mark.timeout(600)  # the first one installs the older versions
@pytest.mark.parametrize(
    ("script", "new_there"),
    [
        pytest.param("made_by_libraries.py", True, id="from older versions"),
        pytest.param("made_by_libraries.py", False, id="to older versions", marks=pytest.mark.long),
        pytest.param("other_versions.py", True, id="whose error names both"),
        pytest.param("other_versions.py", False, id="whose error names both there", marks=pytest.mark.long),
    ],
)
def test_a_class_that_a_library_made_meets_another_version_of_it(script, new_there, older, tmp_path):
    here, there = (older, sys.executable) if new_there else (sys.executable, older)

    script = str(CALLS / script)
    assert broken(roundtrip.run(here, [script], tmp_path, CALLS, there=(there, version(there)))) == {}


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


@pytest.mark.long
@pytest.mark.parametrize("module", PACKED)
def test_what_another_version_packed_is_read(module: str):
    files = [FIXTURES / "packed" / f"{packed}.pkl.gz" for packed in PACKED[module]]

    for found, differs in zip(trip(str(TORCH), "read", module, *files), PACKED[module].values()):
        assert {name: said for name, said in found.items() if name not in differs} == {}


@pytest.mark.long
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
