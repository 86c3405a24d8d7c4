"""The survey of what survives the way to a job and back: a sample reaches its targets, and differences are seen."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.survey import environments, runs
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


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Return a function that makes an interpreter whose every client adds its lines, and then ends by a command."""
    monkeypatch.setattr(environments, "CACHE", tmp_path / "cache")

    def make(lines, then="exit 0"):
        program = tmp_path / "python"
        found = "/results-of-a-client"
        program.write_text(f"#!/bin/sh\n{lines}\n{then}\n".replace(found, str(tmp_path / "values-one")))
        program.chmod(0o700)
        return str(program)

    return make


def _surveyed(client, tmp_path, **limits):
    results = tmp_path / "values-one.new"
    runs.survey("one", client, client, (3, 11), results, limits=runs.Limits(**limits))
    return [(line["name"], line["kind"]) for line in json.loads(results.read_text())]


_FIRST = """echo '{"name": "one.First", "kind": "value"}' >>/results-of-a-client.jsonl"""
_ONCE = "[ -e /results-of-a-client.jsonl ] ||"
_END = """echo '{"name": "*", "kind": "end"}' >>/results-of-a-client.jsonl"""


@pytest.mark.parametrize(
    ("lines", "then", "limits"),
    [
        pytest.param(_FIRST, "exec sleep 600", {"task_s": 0.3}, id="takes too long"),
        pytest.param(_FIRST, "exec sleep 600", {"still_s": 0.3, "starts": 1}, id="is stuck"),
        pytest.param(f"{_ONCE} {_FIRST}", "kill -9 $$", {"starts": 3}, id="ends each time"),
    ],
)
def test_a_package_that_does_not_come_to_its_end_is_left_as_it_is(client, tmp_path, lines, then, limits):
    found = _surveyed(client(lines, then), tmp_path, **limits)

    assert found in ([("one.First", "value"), ("*", "unfinished")], [("*", "unfinished")])


def test_what_an_interrupted_survey_left_of_a_package_does_not_count(client, tmp_path):
    (tmp_path / "values-one.begun").write_text("one.Second\n")
    (tmp_path / "values-one.jsonl").write_text('{"name": "one.Sec')

    assert _surveyed(client(f"{_FIRST}\n{_END}"), tmp_path) == [("one.First", "value"), ("*", "end")]


def test_a_survey_that_is_stopped_ends_its_processes_and_keeps_no_half_of_a_package(client, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "stopping", threading.Event())
    runs.stopping.set()

    with pytest.raises(runs.Interrupted):
        _surveyed(client(_FIRST, "exec sleep 600"), tmp_path)
    assert not (tmp_path / "values-one.new").exists()
