"""The survey of what survives the way to a job and back: a sample reaches its targets, and differences are seen."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.survey import environments
from benchmarks.survey.same import difference

ROOT = Path(__file__).parents[2]


class Held:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (0.0, -0.0), ([1, {"a": Held(1)}], [1, {"a": Held(2)}]), ({1, 2}, {1, 3}), (len, min)]
)
def test_a_difference_is_seen_wherever_it_is(one, other):
    assert difference(one, other)
    assert difference(one, one) == ""


def test_two_of_the_same_content_are_the_same_without_an_equality_and_in_circles():
    one, other = Held([1.5, float("nan"), {"a": {1}}]), Held([1.5, float("nan"), {"a": {1}}])
    one.value.append(one)
    other.value.append(other)

    assert difference(one, other) == ""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_sample_of_the_survey_reaches_its_targets():
    if any(environments.interpreter(minor) is None for minor in (9, 11, 13)):
        pytest.skip("Python 3.9, 3.11 and 3.13 are not all installed")

    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.survey", "sample", "--workers=2"], cwd=ROOT, capture_output=True, text=True
    )

    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
    counts = [int(each) for each in re.findall(r"^(?:exceptions|values): (\d+)", ran.stdout, re.MULTILINE)]
    assert len(counts) == 2 and min(counts) > 300, ran.stdout
