"""Sweeps as a user runs them: exact numbers and lines, every failure by its name, and resuming after a crash."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

import clusterfn
from clusterfn import ConfigError, PayloadError, SweepError, cluster

RETRIEVAL = {
    "embedder": ["e5", "bge", "gte", "minilm", "splade"],
    "index": ["flat", "ivf", "hnsw"],
    "pipeline": ["reranker_only", "reranker_then_splade", "vector_only"],
    "k": [1, 5, 10],
}


def retrieve(embedder, index, pipeline, k):
    """Each configuration has a score of its own."""
    scores = [len(embedder) / 100, len(index) / 10, len(pipeline) / 1000, k / 10_000]
    print("retrieving", pipeline)
    return {"score": sum(scores), "scores": scores}


def graded(x):
    if x == 3:
        raise KeyError(x)
    return {1: {"score": float("nan")}, 2: {"loss": 1}}.get(x, {"score": x, "scores": [x % 2, 1]})


for each in (retrieve, graded):
    each.__module__ = "__main__"


def test_135_configurations_are_capped_to_3_here(here, capfd):
    result = clusterfn.sweep(cluster(retrieve), RETRIEVAL, max_configs=3, seed=27)

    said = capfd.readouterr().err.splitlines()
    assert "Capping configurations from 135 to 3 as requested" in said
    assert [line.split()[0] for line in said if line.startswith("[")] == ["[1/3]", "[2/3]", "[3/3]"]
    assert said[-1].startswith(f"3/3 configurations completed; best: {result.best.name} {result.best.score:.3f} ")
    assert [each.value["score"] for each in result] == [each.score for each in result]
    assert result.best.score == max(each.score for each in result) and result.failed == {}


def test_a_seed_that_was_not_given_is_said_and_can_be_given(here, capfd):
    result = clusterfn.sweep(cluster(graded), {"x": range(10, 1000)}, max_configs=2)

    assert f"clusterfn: seed={result.seed} chooses the same configurations again" in capfd.readouterr().err
    again = clusterfn.sweep(cluster(graded), {"x": range(10, 1000)}, max_configs=2, seed=result.seed)
    assert [each.name for each in again] == [each.name for each in result]


def test_a_sweep_without_any_score_says_which_key_could_be_it(here):
    with pytest.raises(SweepError) as caught:
        clusterfn.sweep(cluster(lambda x: {"loss": x, "name": "a"}), {"x": [1, 2]})

    assert "no 'score' among ['loss', 'name']" in str(caught.value)
    assert caught.value.__cause__ is not None and caught.value.__cause__.__traceback__ is None


def test_each_failure_has_its_name_and_none_is_ranked(here, capfd):
    result = clusterfn.sweep(cluster(graded), {"x": [1, 2, 3, 4, 6]}, minimize=True)

    assert {name: str(error) for name, error in result.failed.items()} == {
        "GRID_0000": "the score is nan",
        "GRID_0001": "the result has no score: no 'score' among ['loss']",
        "GRID_0002": "3",
    }
    assert [each.name for each in result.ranking] == ["GRID_0003", "GRID_0004"]
    said = capfd.readouterr().err
    assert "GRID_0000 x=1 ✗ ValueError: the score is nan\n" in said
    assert said.endswith("\n2/5 configurations completed, 3 failed; best: GRID_0003 4.000 x=4\n")


def test_no_success_is_one_error_with_each_cause_and_its_count(here):
    with pytest.raises(SweepError, match="no configuration completed successfully") as caught:
        clusterfn.sweep(cluster(graded), {"x": [3, 1, 3]})

    assert caught.value.evidence == ("2 x KeyError: 3", "1 x ValueError: the score is nan")
    assert f"clusterfn.attach('{caught.value.job[:4]}').failed" in caught.value.hint
    assert "elements" in caught.value.log
    assert caught.value.host == "here" and caught.value.job in caught.value.log
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_sweep_whose_first_result_has_no_such_score_is_stopped(here):
    def work(x):
        import time

        time.sleep(600 if x else 0)
        return {"accuracy": x}

    work.__module__ = "__main__"
    with pytest.raises(SweepError, match="its first result has no such score") as caught:
        clusterfn.sweep(cluster(work), {"x": range(3)}, score="loss", max_parallel=2)

    assert caught.value.evidence == ("the result has no score: no 'loss' among ['accuracy']",)
    group = clusterfn.attach(caught.value.job)
    assert group.wait(150) and set(group.states[1:]) == {"CANCELLED"}


def test_a_sweep_or_map_inside_a_job_is_refused_as_that(here):
    function = cluster(graded)

    def inside():
        found = []
        for call in (lambda: clusterfn.sweep(function, {"x": [1]}), lambda: function.map([1])):
            try:
                call()
            except RuntimeError as error:
                found.append(str(error))
        return found

    sweep, mapped = cluster(inside)()

    assert sweep.startswith("clusterfn.sweep() inside a job") and mapped.startswith("graded.map() inside a job")


def test_what_cannot_travel_is_named_by_its_configuration(here):
    import threading

    with pytest.raises(PayloadError, match="GRID_0001 cannot be sent: "):
        clusterfn.sweep(cluster(graded), {"x": [1, threading.Lock()]})


# resume

SCRIPT = """
import json, os, sys, time
import clusterfn
from clusterfn import cluster

FOLDER = sys.argv[1]

@cluster(host="here")
def work(x):
    with open(os.path.join(FOLDER, f"began-{x}"), "a") as file:
        file.write("once\\n")
    deadline = time.monotonic() + 200  # longer than any test waits
    while x > 1 and not os.path.exists(os.path.join(FOLDER, "go")):
        if time.monotonic() > deadline:
            raise TimeoutError("nobody said go")
        time.sleep(0.05)
    return {"score": x, "scores": [x, x]}

if __name__ == "__main__":
    result = clusterfn.sweep(work, {"x": range(6)}, resume=(sys.argv[2:] or [None])[0])
    print(json.dumps([[each.name, each.score, each.value["score"]] for each in result]))
"""
ALL = [[f"GRID_000{x}", x, x] for x in range(6)]


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path / "script.py"


@pytest.fixture
def started(script):
    """Starts the script, in the language of old machines; returns it and the id of its group, once two have ended."""
    running = []

    def start(*argv):
        running.append(subprocess.Popen(
            [sys.executable, str(script), str(script.parent), *argv], text=True, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "LANG": "C", "LC_ALL": "C"},
        ))  # fmt: skip
        group = ""
        while not argv and (line := running[-1].stderr.readline()):
            group = found[1] if (found := re.match(r"clusterfn: (\w+) work on here", line)) else group
            if line.startswith("[2/6]"):
                break
        return running[-1], group

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_a_killed_sweep_resumes_with_its_group_and_runs_nothing_twice(script, here, started):
    folder = script.parent
    first, group = started()
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=150)

    second, _ = started(group)
    (folder / "go").touch()
    out, said = second.communicate(timeout=150)

    assert second.returncode == 0, said
    assert json.loads(out) == ALL
    assert [(folder / f"began-{x}").read_text() for x in range(6)] == ["once\n"] * 6
    assert said.splitlines()[-1] == "6/6 configurations completed; best: GRID_0005 5.000 x=5"


def test_ctrl_c_detaches_and_says_how_to_resume(here, script, started):
    process, group = started()

    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=150)[1]
    (script.parent / "go").touch()

    assert f"to resume, run the same sweep with resume={group!r}" in said
    assert " keeps running on here." in said and "KeyboardInterrupt" in said
    assert clusterfn.attach(group).results(150)[-1] == {"score": 5, "scores": [5, 5]}


def test_what_failed_runs_again_and_what_ended_well_does_not(here, tmp_path):
    folder = str(tmp_path)

    def second_time(x):
        import os

        try:
            os.mkdir(os.path.join(folder, f"{x}"))
        except FileExistsError:
            return x + 100
        if x == 2:
            raise ValueError("not yet")
        return x

    second_time.__module__ = "__main__"
    first = clusterfn.sweep(cluster(second_time), {"x": [1, 2, 3]})
    again = clusterfn.sweep(cluster(second_time), {"x": [1, 2, 3]}, resume=first.best.job)

    assert list(first.failed) == ["GRID_0001"]
    assert [each.score for each in again] == [1, 102, 3]


def test_the_group_of_another_sweep_is_refused_with_the_difference(here):
    first = clusterfn.sweep(cluster(graded), {"x": [5, 6]})

    with pytest.raises(ConfigError, match="is the group of another sweep") as caught:
        clusterfn.sweep(cluster(graded), {"x": [5, 7]}, resume=first.best.job)
    assert caught.value.evidence == ("'GRID_0001 x=6' there, 'GRID_0001 x=7' here",)

    with pytest.raises(ConfigError, match="is the group of another sweep") as caught:
        clusterfn.sweep(cluster(retrieve), RETRIEVAL, resume=first.best.job)
    assert caught.value.evidence == ("'graded' there, 'retrieve' here",)

    with pytest.raises(ConfigError, match="is a single job"):
        clusterfn.sweep(cluster(graded), {"x": [5, 7]}, resume=cluster(abs).submit(1).id)
