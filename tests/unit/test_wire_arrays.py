"""Tensors, indexes and tables, there and back: see tests/fixtures/calls. The lab's torch environment has them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fixtures import roundtrip
from tests.unit.test_wire_calls import CALLS, TORCH, version

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


def test_a_caller_without_the_library_gets_plain_data_or_its_name(tmp_path: Path):
    there = (str(TORCH), version(str(TORCH)))
    report = roundtrip.run(sys.executable, [str(CALLS / "without_libraries.py")], tmp_path, CALLS, there=there)

    assert broken(report) == {}
