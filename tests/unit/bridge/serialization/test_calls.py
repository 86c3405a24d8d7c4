"""Calls as people write them, there and back through a process that has the bridge alone: see tests/fixtures/calls."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures import roundtrip

CALLS = roundtrip.HERE / "calls"
TORCH = Path("/opt/clusterfn-lab/envs/torch/bin/python")  # has numpy; made by `make test`
ENDS = ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "CancelledError")
GROUPS = ("a nested group and its own class", "a group of more than a hundred")
# Of which libraries a script has classes; between other versions of them they go in `test_arrays.py`.
OF_LIBRARIES = {
    "made_by_libraries.py": ("attrs", "pydantic"),
    "made_by_calls.py": ("attrs", "pydantic"),
    "postponed.py": ("pydantic",),
}


@functools.cache
def version(python: str) -> str:
    return (
        subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1].rpartition(".")[0]
    )


# The others' calls to each other, in `test_minors.py`, pack the same with them.
PYTHONS = [
    pytest.param(each, id=version(each), marks=() if each == sys.executable else pytest.mark.long)
    for each in roundtrip.pythons()
]


@pytest.mark.parametrize("python", PYTHONS)
def test_each_call_arrives_and_comes_back(python, tmp_path):
    promised = {*roundtrip.promises("script.py"), *(f"{name} arrives as FunctionError" for name in ENDS)} - {*GROUPS}

    report = roundtrip.run(python, [str(CALLS / "script.py")], tmp_path, CALLS)

    assert report.pop("*said*") == "", "rebuilding prints nothing"
    if version(python) not in ("3.9", "3.10"):
        promised |= {*GROUPS}  # of Python 3.11
    assert {promise: report.get(promise) for promise in promised | report.keys()} == dict.fromkeys(promised, "kept")


def test_a_program_run_with_m(tmp_path):
    report = roundtrip.run(sys.executable, ["-m", "project.main"], tmp_path, CALLS)

    assert report == {**dict.fromkeys(roundtrip.promises("project/main.py"), "kept"), "*said*": ""}


@pytest.mark.skipif(not TORCH.exists(), reason="the lab's torch environment, which has numpy, is not there")
def test_arrays_go_and_come_back(tmp_path):
    report = roundtrip.run(str(TORCH), [str(CALLS / "numbers_script.py")], tmp_path, CALLS)

    assert {promise for promise, how in report.items() if how != "kept"} == {"*said*"}


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_a_class_that_a_library_made_goes_and_comes_back(name, tmp_path):
    for library in OF_LIBRARIES[name]:
        pytest.importorskip(library)
    there = (sys.executable, version(sys.executable))
    report = roundtrip.run(sys.executable, [str(CALLS / name)], tmp_path, CALLS, there=there)

    assert {promise: how for promise, how in report.items() if how not in ("kept", "")} == {}
