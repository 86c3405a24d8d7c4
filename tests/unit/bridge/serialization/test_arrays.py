"""Tensors, indexes and tables, there and back: see tests/fixtures/calls. The lab's torch environment has them."""

from __future__ import annotations

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
@pytest.mark.timeout(600)  # the first one installs the older versions
@pytest.mark.parametrize("new_there", [True, False], ids=["from numpy 1", "to numpy 1"])
def test_numpy_1_and_2_read_each_other(new_there: bool, older: str, tmp_path: Path):
    here, there = (older, str(TORCH)) if new_there else (str(TORCH), older)

    report = roundtrip.run(
        here, [str(CALLS / "numbers_script.py")], tmp_path, CALLS, there=(there, version(str(TORCH)))
    )

    failed = {promise for promise in broken(report) if promise != "*said*"}
    assert failed <= {"an array of variable texts", "a function in which errors are ignored"}


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
        pytest.param("made_by_libraries.py", False, id="to older versions"),
        pytest.param("other_versions.py", True, id="whose error names both"),
        pytest.param("other_versions.py", False, id="whose error names both there", marks=pytest.mark.long),
    ],
)
def test_a_class_that_a_library_made_meets_another_version_of_it(
    script: str, new_there: bool, older: str, tmp_path: Path
):
    here, there = (older, sys.executable) if new_there else (sys.executable, older)

    script = str(CALLS / script)
    assert broken(roundtrip.run(here, [script], tmp_path, CALLS, there=(there, version(there)))) == {}
