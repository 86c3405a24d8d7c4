"""Sweeps as a user runs them: exact numbers and lines, every failure by its name, and going on after a crash."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import clusterfn
from clusterfn import ConfigError, PayloadError, SweepError, cluster
from tests.e2e.inside import PATIENT
from tests.waiting import until

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


def lines(journal, event):
    """Those about one kind of event; what is torn is none."""
    told = [line for line in Path(journal).read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return [each for each in map(json.loads, told) if each["event"] == event]


def test_135_configurations_are_capped_to_3_here(here, tmp_path, capfd):
    result = clusterfn.sweep(
        cluster(retrieve), RETRIEVAL, max_configs=3, seed=27, group_by="pipeline", journal=tmp_path / "j"
    )

    said = capfd.readouterr().err.splitlines()
    assert "Capping configurations from 135 to 3 as requested" in said
    assert said[said.index("Capping configurations from 135 to 3 as requested") + 1].startswith("reranker_only ")
    assert [line.split()[0] for line in said if line.startswith("[")] == ["[1/3]", "[2/3]", "[3/3]"]
    best = f"{result.best.name} {result.best.score:.3f} {result.best.config['pipeline']}"
    assert said[-1] == f"3/3 configurations completed; best: {best}"
    assert [each.value["score"] for each in result] == [each.score for each in result]
    assert result.best.score == max(each.score for each in result) and result.failed == {} and result.ghosts == []
    (began,) = lines(tmp_path / "j", "begin")
    assert (began["size"], began["max_configs"], began["seed"]) == (135, 3, 27)
    assert lines(tmp_path / "j", "end")[0]["completed"] == 3
    assert {each["name"] for each in lines(tmp_path / "j", "began")} == {each.name for each in result}


@pytest.mark.lab
def test_a_sweep_on_slurm_ranks_what_was_completed_and_names_what_failed(hosts, tmp_path, capfd):
    function = cluster(host="slurm", memory="200MB")(graded)

    result = clusterfn.sweep(function, {"x": range(3, 9)}, max_parallel=3, top=2, journal=tmp_path / "j")

    said = capfd.readouterr().err.splitlines()
    assert {line.partition("] ")[2].partition(",")[0] for line in said if line.startswith("[")} == {
        "GRID_0000 x=3 ✗ KeyError: 3", *(f"GRID_000{n} x={n + 3} ✓ {n + 3}.000" for n in range(1, 6)),
    }  # fmt: skip
    assert said[-1:] == [
        "5/6 configurations completed, 1 failed; best: GRID_0005 8.000 x=8; "
        "some have identical scores throughout (result.ghosts)"
    ]
    assert str(result).splitlines() == [
        "5/6 configurations completed (83 %)",
        "1. GRID_0005 8.000 x=8", "2. GRID_0004 7.000 x=7", "… and 3 more", "✗ GRID_0000 KeyError: 3",
        "identical scores throughout: GRID_0001, GRID_0003, GRID_0005",
        "identical scores throughout: GRID_0002, GRID_0004",
    ]  # fmt: skip
    assert [each.name for each in result.ranking] == [f"GRID_000{n}" for n in (5, 4, 3, 2, 1)]
    assert {each.host for each in result} == {"slurm"} and isinstance(result.failed["GRID_0000"], KeyError)
    (sent,) = lines(tmp_path / "j", "sent")
    assert len(sent["names"]) == len(lines(tmp_path / "j", "ended")) == 6


def test_a_seed_that_was_not_given_is_said_and_can_be_given(here, capfd):
    result = clusterfn.sweep(cluster(graded), {"x": range(10, 1000)}, max_configs=2)

    assert f"clusterfn: seed={result.seed} chooses the same configurations again" in capfd.readouterr().err
    again = clusterfn.sweep(cluster(graded), {"x": range(10, 1000)}, max_configs=2, seed=result.seed)
    assert [each.name for each in again] == [each.name for each in result]


def test_a_sweep_without_any_score_says_which_key_could_be_it(here):
    with pytest.raises(SweepError) as caught:
        clusterfn.sweep(cluster(lambda x: {"loss": x, "name": "a"}), {"x": [1, 2]})

    assert "name the key that holds the score: score='loss'" in str(caught.value)
    assert "; if the lowest is best, add minimize=True" in str(caught.value)
    assert caught.value.__cause__ is not None and caught.value.__cause__.__traceback__ is None


def test_each_failure_has_its_name_and_none_is_ranked(here, capfd):
    result = clusterfn.sweep(cluster(graded), {"x": [1, 2, 3, 4, 6]}, minimize=True)

    assert {name: str(error) for name, error in result.failed.items()} == {
        "GRID_0000": "the score is nan",
        "GRID_0001": "the result has no score: no 'score' among ['loss']",
        "GRID_0002": "3",
    }
    assert [each.name for each in result.ranking] == ["GRID_0003", "GRID_0004"]
    assert result.ghosts == [["GRID_0003", "GRID_0004"]]
    said = capfd.readouterr().err
    assert "GRID_0000 x=1 ✗ ValueError: the score is nan\n" in said
    assert said.endswith(
        "\n2/5 configurations completed, 3 failed; best: GRID_0003 4.000 x=4; "
        "some have identical scores throughout (result.ghosts)\n"
    )
    assert str(result).endswith("\nidentical scores throughout: GRID_0003, GRID_0004")


def test_no_success_is_one_error_with_each_cause_and_its_count(here, tmp_path):
    with pytest.raises(SweepError, match="no configuration completed successfully") as caught:
        clusterfn.sweep(cluster(graded), {"x": [3, 1, 3]}, journal=tmp_path / "j")

    assert caught.value.evidence == ("2 x KeyError: 3", "1 x ValueError: the score is nan")
    assert str(tmp_path / "j") in caught.value.hint and "elements" in caught.value.log
    assert caught.value.host == "here" and caught.value.job in caught.value.log
    assert isinstance(caught.value.__cause__, KeyError)
    assert lines(tmp_path / "j", "end")[0]["completed"] == 0


def test_a_sweep_whose_first_result_has_no_such_score_is_stopped(here, tmp_path):
    def work(x):
        import time

        time.sleep(600 if x else 0)
        return {"accuracy": x}

    work.__module__ = "__main__"
    with pytest.raises(SweepError, match="its first result has no such score") as caught:
        clusterfn.sweep(cluster(work), {"x": range(3)}, journal=tmp_path / "j", score="loss", max_parallel=2)

    assert caught.value.evidence == ("the result has no score: no 'loss' among ['accuracy']",)
    assert clusterfn.attach(caught.value.job).wait(150)
    assert len(lines(tmp_path / "j", "ended")) == 1


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


def test_only_keywords_and_draws_and_a_key_of_the_result(here):
    def work(*, lr, size=2):
        return {"loss": lr * size}

    result = clusterfn.sweep(
        cluster(work), {"lr": lambda chance: chance.random()}, max_configs=4, sampler="random", seed=1, score="loss",
        minimize=True, top=2,
    )  # fmt: skip

    assert [each.name for each in result] == ["RANDOM_0000", "RANDOM_0001", "RANDOM_0002", "RANDOM_0003"]
    assert result.best.score == min(each.config["lr"] * 2 for each in result) and len(result.top()) == 2


# going on

SCRIPT = """
import json, os, sys, time
import clusterfn
from clusterfn import cluster

FOLDER = sys.argv[1]

@cluster(host=sys.argv[2])
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
    result = clusterfn.sweep(work, {"x": range(6)}, journal=os.path.join(FOLDER, "journal"))
    print(json.dumps([[each.name, each.score, each.value["score"], each.source] for each in result]))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path / "script.py"


@pytest.fixture
def started(script):
    """Starts the script, in the language of old machines."""
    running = []

    def start(*argv):
        running.append(subprocess.Popen(
            [sys.executable, str(script), str(script.parent), *argv], text=True, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "LANG": "C", "LC_ALL": "C"},
        ))  # fmt: skip
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def count(folder, event):
    path = folder / "journal"
    return len(lines(path, event)) if path.exists() else 0


def test_a_killed_sweep_goes_on_with_its_group_and_runs_nothing_twice(here, script, started):
    folder = script.parent
    first = started("here")
    until(lambda: count(folder, "ended") == 2)
    refused = started("here").communicate(timeout=150)[1]
    os.kill(first.pid, signal.SIGKILL)
    first.communicate(timeout=150)
    with (folder / "journal").open("ab") as file:
        file.write(b'{"event": "ended", "name": "GRID_00')  # what a crash of the machine leaves

    second = started("here")
    until(lambda: count(folder, "resumed") == 1)
    (folder / "go").touch()
    out, said = second.communicate(timeout=150)

    assert "another process is using" in refused
    assert second.returncode == 0, said
    assert [(name, score, value) for name, score, value, _ in json.loads(out)] == [
        (f"GRID_000{x}", x, x) for x in range(6)
    ]
    assert [source for *_, source in json.loads(out)] == ["journal"] * 2 + ["run"] * 4
    assert [(folder / f"began-{x}").read_text() for x in range(6)] == ["once\n"] * 6
    assert len(lines(folder / "journal", "sent")) == 1
    assert "reattached to" in said and "2 of 6 configurations: finished in an earlier run" in said
    assert said.splitlines()[-1] == "6/6 configurations completed; best: GRID_0005 5.000 x=5"


def test_ctrl_c_lets_go_and_says_how_to_go_on(here, script, started):
    folder = script.parent
    process = started("here")
    until(lambda: count(folder, "ended") == 2)

    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=150)[1]
    (folder / "go").touch()

    assert f"to resume, run the same sweep with journal={str(folder / 'journal')!r}" in said
    assert " keeps running on here." in said and "KeyboardInterrupt" in said
    (sent,) = lines(folder / "journal", "sent")
    assert clusterfn.attach(sent["group"]).results(150)[-1] == {"score": 5, "scores": [5, 5]}


def test_a_sweep_that_was_stopped_goes_on_with_what_it_had_not_run(here, script, started):
    folder = script.parent
    script.write_text(PATIENT + SCRIPT)
    first = started("here")
    until(lambda: count(folder, "ended") == 2)
    first.send_signal(signal.SIGINT)
    while "Ctrl-C again within 3 s" not in first.stderr.readline():
        assert first.poll() is None
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=150)
    (sent,) = lines(folder / "journal", "sent")
    clusterfn.attach(sent["group"]).wait(150)  # stopped, and not let go

    (folder / "go").touch()
    second = started("here")
    out, said = second.communicate(timeout=150)

    assert second.returncode == 0, said
    assert [source for *_, source in json.loads(out)] == ["journal"] * 2 + ["run"] * 4
    assert "4 of 6 configurations: were stopped earlier and run again" in said and "✗" not in said, said
    assert said.splitlines()[-1] == "6/6 configurations completed; best: GRID_0005 5.000 x=5"


def test_what_failed_is_run_again_and_what_ended_well_is_not(here, tmp_path):
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
    first = clusterfn.sweep(cluster(second_time), {"x": [1, 2, 3]}, journal=tmp_path / "j")
    again = clusterfn.sweep(cluster(second_time), {"x": [1, 2, 3]}, journal=tmp_path / "j")

    assert list(first.failed) == ["GRID_0001"]
    assert [(each.score, each.source) for each in again] == [(1, "journal"), (102, "run"), (3, "journal")]


def test_a_value_that_is_lost_here_is_fetched_from_its_host_and_not_computed_again(here, tmp_path):
    folder = str(tmp_path)

    def once(x):
        import os

        os.mkdir(os.path.join(folder, f"{x}"))
        return x

    once.__module__ = "__main__"
    first = clusterfn.sweep(cluster(once), {"x": [1, 2]}, journal=tmp_path / "j")
    for kept in (tmp_path / "j.values").iterdir():
        kept.unlink()
    again = clusterfn.sweep(cluster(once), {"x": [1, 2]}, journal=tmp_path / "j")

    assert [(each.value, each.job) for each in again] == [(each.value, each.job) for each in first]
    assert len(lines(tmp_path / "j", "sent")) == 1


def test_a_group_that_its_host_never_got_is_sent_again(here, tmp_path, capfd):
    with pytest.raises(SweepError):
        clusterfn.sweep(cluster(graded), {"x": [3]}, journal=tmp_path / "j")
    told = (tmp_path / "j").read_text().splitlines()
    sent = json.loads(next(line for line in told if '"sent"' in line))
    torn = [told[0], told[1], json.dumps({**sent, "group": "00" * 8})]
    (tmp_path / "j").write_text("\n".join(torn) + "\n")

    with pytest.raises(SweepError):
        clusterfn.sweep(cluster(graded), {"x": [3]}, journal=tmp_path / "j")

    assert "0000 is submitted again: " in capfd.readouterr().err


def test_the_journal_of_another_sweep_is_refused_with_the_difference(here, tmp_path):
    clusterfn.sweep(cluster(graded), {"x": range(10, 20)}, max_configs=1, seed=1, journal=tmp_path / "j")
    before = (tmp_path / "j").read_bytes()

    with pytest.raises(ConfigError, match="is the journal of another sweep") as caught:
        clusterfn.sweep(cluster(graded), {"x": range(10, 21)}, max_configs=1, seed=2, journal=tmp_path / "j")

    assert "seed: 1 in the journal, 2 now" in caught.value.evidence
    assert any(line.startswith("x: [10, 11") for line in caught.value.evidence)
    assert (tmp_path / "j").read_bytes() == before
    assert "cache=True" in caught.value.hint


# results that are kept


def test_a_result_is_not_computed_again_unless_code_or_arguments_differ(here, tmp_path, capfd):
    def work(x):
        return x * factor

    work.__module__ = "__main__"
    factor = 1
    options = {"cache": tmp_path / "cache"}
    first = clusterfn.sweep(cluster(work), {"x": [1, 2]}, **options)
    second = clusterfn.sweep(cluster(work), {"x": [1, 2, 3]}, journal=tmp_path / "j", **options)
    factor = 10
    third = clusterfn.sweep(cluster(work), {"x": [1]}, **options)

    assert [each.source for each in first] == ["run", "run"]
    assert [(each.score, each.source) for each in second] == [(1, "cache"), (2, "cache"), (3, "run")]
    assert [(each.score, each.source) for each in third] == [(10, "run")]
    assert [(each["name"], each["score"], each["source"]) for each in lines(tmp_path / "j", "ended")] == [
        ("GRID_0000", 1, "cache"), ("GRID_0001", 2, "cache"), ("GRID_0002", 3, "run"),
    ]  # fmt: skip
    said = capfd.readouterr().err
    assert "2 of 3 configurations: in the cache" in said and "[3/3] GRID_0002 x=3 ✓ 3.000" in said


def test_the_cache_of_one_function_is_reported_and_can_be_deleted_by_itself(here, tmp_path, capfd):
    cached = {"cache": tmp_path / "cache"}
    clusterfn.sweep(cluster(graded), {"x": [4, 5]}, **cached)
    clusterfn.sweep(cluster(lambda x: x), {"x": [4]}, **cached)
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("clusterfn: cached: ")]
    (folder,) = (tmp_path / "cache").glob("graded-*")

    assert said[0].startswith("clusterfn: cached: 2 results, ")
    assert said[0].endswith(f"bytes, in {folder}; to recompute everything, delete that folder")
    shutil.rmtree(folder)
    assert [each.source for each in clusterfn.sweep(cluster(graded), {"x": [4, 5]}, **cached)] == ["run", "run"]
    assert [each.source for each in clusterfn.sweep(cluster(lambda x: x), {"x": [4]}, **cached)] == ["cache"]


class Handle:
    """As indexes of faiss: the library sends it, pickle does not."""

    def __init__(self, x=0):
        self.x = x

    def __reduce_ex__(self, protocol):
        if "clusterfn.sweeps" in sys._getframe(1).f_globals["__name__"]:
            raise TypeError("it is a handle")
        return Handle, (self.x,)


def test_what_cannot_be_compared_is_said_where_results_are_kept(here, tmp_path, capfd):
    handle = Handle(1)

    def work(x):
        return handle.x + x.x

    work.__module__ = Handle.__module__ = "__main__"
    for _ in range(2):
        clusterfn.sweep(cluster(work), {"x": [handle]}, journal=tmp_path / "j", cache=tmp_path / "cache")

    said = capfd.readouterr().err
    assert said.count("nothing is cached: the content of work cannot be compared\n") == 2
    assert said.count("whether x, work has changed: its content cannot be compared\n") == 1


def test_a_cached_result_without_this_score_is_run_again_and_fails_by_its_name(here, tmp_path, capfd):
    clusterfn.sweep(cluster(graded), {"x": [4]}, cache=tmp_path / "cache")

    with pytest.raises(SweepError):
        clusterfn.sweep(cluster(graded), {"x": [4]}, cache=tmp_path / "cache", score="loss")

    assert "[1/1] GRID_0000 x=4 ✗ ValueError: the result has no score: no 'loss' among" in capfd.readouterr().err
