"""`retries=`: what passes is tried again, on another card, and the job still has exactly one final outcome."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.cards import machine
from tests.bridge.group import ITEM, Group
from tests.bridge.host import Bench, Job
from tests.processes import is_running, supervisor_of
from tests.waiting import until

ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be reported later"
# Counts its attempts in checkpoint/, and raises in the first `failures` of them.
FLAKY = f"""
def f(failures, error={ECC!r}, kind=RuntimeError, wait=0):
    import os, time
    path = os.path.join(os.environ["CLUSTERFN_CHECKPOINT"], "attempts")
    with open(path, "a") as file:
        file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "") + "\\n")
    with open(path) as file:
        lines = file.read().split("\\n")[:-1]
    print("attempt", len(lines), flush=True)
    time.sleep(wait)
    if len(lines) <= failures:
        raise kind(error)
    return lines
"""
SLOW = """
def f(seconds):
    import os, time
    path = os.path.join(os.environ["CLUSTERFN_CHECKPOINT"], "attempts")
    with open(path, "a") as file:
        file.write("x")
    time.sleep(seconds if os.path.getsize(path) == 1 else 0)
    return os.path.getsize(path)
"""


def outcomes(job: Job) -> list[dict[str, Any]]:
    names = sorted(os.listdir(job.folder / "attempts"), key=int)
    return [json.loads((job.folder / "attempts" / name / "outcome.json").read_text()) for name in names]


def last(job: Job) -> dict[str, Any]:
    """The one final outcome, which must be the last."""
    every = outcomes(job)
    assert [each["final"] for each in every] == [False] * (len(every) - 1) + [True], job.log()
    return every[-1]


def value_of(job: Job) -> Any:
    """What the last attempt returned."""
    attempts = job.folder / "attempts"
    number = len(os.listdir(attempts))
    (attempts / "1" / "value.pkl").write_bytes((attempts / str(number) / "value.pkl").read_bytes())
    return job.value()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """$PATH of a machine with three cards."""
    machine(tmp_path / "bin", *[("NVIDIA Toy", 24576)] * 3)
    return f"{tmp_path / 'bin'}:{os.environ['PATH']}"


def test_an_error_that_passes_is_tried_again_on_another_gpu(bench: Bench, path: str):
    job = bench.job(FLAKY, 2, retries=2, resources={"gpus": 1})

    job.run(PATH=path)

    outcome, first, second = last(job), *outcomes(job)[:2]
    cards = value_of(job)
    assert (outcome["kind"], outcome["attempt"], len(set(cards))) == ("returned", 3, 3)
    assert (first["kind"], first["superseded_by"], second["superseded_by"]) == ("superseded", 2, 3)
    uuids = [each["retried"].pop("cards")[0] for each in (first, second)]
    assert first["retried"] == {"kind": "raised", "cause": "cudaErrorECCUncorrectable"} and cards == ["0", "1", "2"]
    assert outcome["earlier"] == [
        f"attempt {number} failed on GPU {number - 1} (NVIDIA Toy, {uuids[number - 1]}): RuntimeError: CUDA error: "
        f"uncorrectable ECC error encountered; retried ({number} of 2)"
        for number in (1, 2)
    ]
    assert first["message"] == outcome["earlier"][0]
    assert job.output() == "attempt 1\n", "each attempt's output stays in its own folder"
    assert first["usage"]["wall_s"] > 0 and first["exception"]["type"] == "RuntimeError"
    assert {"event": "note", "message": first["message"]}.items() <= job.events()[-2].items()


def test_a_job_that_has_all_gpus_gets_the_same_again(bench: Bench, path: str):
    job = bench.job(FLAKY, 1, retries=1, resources={"gpus": 3})

    job.run(PATH=path)

    first, second = value_of(job)
    assert sorted(first.split(",")) == sorted(second.split(",")) and len(first.split(",")) == 3


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("raise ValueError('no')", id="an exception of the user's own"),
        pytest.param("raise RuntimeError('CUDA out of memory. Tried to allocate 1 GiB')", id="too little memory"),
        pytest.param("raise RuntimeError('CUDA error: device-side assert triggered')", id="the program's own fault"),
        pytest.param("import os; os._exit(3)", id="the end by itself"),
        pytest.param("import os; os.kill(os.getpid(), 9)", id="a signal"),
        pytest.param("import threading; return threading.Lock()", id="a value that cannot be pickled"),
        pytest.param("import time; time.sleep(600)", id="the end of its time"),
    ],
)
def test_what_would_fail_again_is_not_tried_again(bench: Bench, body: str):
    job = bench.job(f"def f():\n    {body}\n", retries=3, resources={"time_s": 2.0})

    job.run()

    assert (last(job)["attempt"], last(job)["earlier"]) == (1, [])


def test_all_attempts_share_the_time(bench: Bench):
    job = bench.job(FLAKY.replace("wait=0", "wait=1.5"), 9, retries=9, resources={"time_s": 10.0})

    job.run()

    assert last(job)["kind"] == "time"
    assert 2 <= last(job)["attempt"] <= 7


def test_a_supervisor_that_died_is_followed_by_another(bench: Bench):
    job = bench.job(SLOW, 600, retries=1)
    job.start()
    until(lambda: (job.folder / "checkpoint" / "attempts").exists())
    until(lambda: (job.folder / "checkpoint" / "attempts").read_text())

    os.kill(job.supervisor_pid(), signal.SIGKILL)
    job.script.wait(150)

    first, outcome = outcomes(job)
    assert (first["kind"], first["superseded_by"], first["retried"]["kind"]) == ("superseded", 2, "lost")
    assert (outcome["kind"], value_of(job)) == ("returned", 2)
    assert outcome["earlier"] == [
        "attempt 1 failed: the supervisor of the job was ended by SIGKILL; what the function had done by then is not "
        "known; retried (1 of 1)"
    ]
    assert not job.tagged()


def test_supervisors_that_die_again_and_again_are_counted(bench: Bench):
    job = bench.job("def f():\n    import time\n    time.sleep(600)\n", retries=2)
    job.start()
    for number in (1, 2, 3):
        folder = job.folder / "attempts" / str(number)
        begun = until(lambda: folder.joinpath("events.jsonl").exists() and _starting(folder))
        os.kill(_parent(begun["pid"]), signal.SIGKILL)
    job.script.wait(150)

    outcome = last(job)
    assert (outcome["kind"], outcome["attempt"], outcome["by"]) == ("lost", 3, "after")
    assert len(outcome["earlier"]) == 2
    assert not job.tagged()


def test_a_try_that_dies_before_it_is_one_is_not_followed_for_ever(bench: Bench):
    job = bench.job(SLOW, 600, retries=3)
    script = job.folder / "job.sh"
    again = next(line for line in script.read_text().split("\n") if " run " in line and line.endswith(" $rc"))
    script.write_text(script.read_text().replace(again, "    (exit 137)"))
    job.start()
    job.wait_for("running")

    os.kill(job.supervisor_pid(), signal.SIGKILL)
    job.script.wait(150)

    assert last(job)["kind"] == "lost"
    assert not job.tagged()


@pytest.mark.parametrize("warn_s", [None, 1.0], ids=["at once", "after a warning"])
def test_a_supervisor_that_was_asked_to_end_is_not_followed(bench: Bench, warn_s: float | None):
    job = bench.job(SLOW, 600, retries=3, warn_s=warn_s)
    job.start()
    job.wait_for("running")

    os.kill(job.supervisor_pid(), signal.SIGTERM)
    job.script.wait(150)

    assert (last(job)["kind"], last(job)["attempt"]) == ("lost", 1)


def test_a_job_that_was_stopped_is_not_tried_again(bench: Bench):
    job = bench.job(SLOW, 600, retries=3)
    job.start()
    job.wait_for("running")

    (job.folder / "cancel").touch()
    job.script.wait(150)

    assert (last(job)["kind"], last(job)["attempt"]) == ("cancelled", 1)


def test_killed_between_two_attempts_it_has_one_final_outcome(bench: Bench):
    """The next attempt is there before the one before says that it was followed."""
    lingering = FLAKY.replace("raise kind", "__import__('atexit').register(time.sleep, 600); raise kind")
    job = bench.job(lingering, 1, retries=1, grace_s=600.0)
    job.start()
    until(lambda: (job.folder / "attempts" / "2").exists())
    os.kill(job.supervisor_pid(), signal.SIGKILL)
    job.script.wait(150)

    assert last(job)["kind"] in ("lost", "returned")
    assert len({each["attempt"] for each in outcomes(job)}) == len(outcomes(job)) <= 3
    assert not job.tagged()


def test_a_process_that_concludes_a_job_between_two_attempts_ends_it(bench: Bench):
    job = bench.job(FLAKY.replace("wait=0", "wait=600"), 1, retries=1)
    job.start()
    job.wait_for("running")
    verdict = {"kind": "time", "message": "concluded from outside", "withdraw": False}

    job.call("conclude", stdin=json.dumps(verdict))
    job.script.wait(150)

    finals = [each for each in outcomes(job) if each["final"]]
    assert [each["message"] for each in finals] == ["concluded from outside"]
    assert until(lambda: not job.tagged())


# As the items of other tests, but in the first `failing[0]` of its starts item 1 raises what passes.
FLAKY_ITEM = ITEM.replace(
    "if x in {failing!r}:\n        raise ValueError(x)",
    "if x == 1 and len(open(os.path.join({folder!r}, 'began-1')).readlines()) <= {failing!r}[0]:\n"
    "        raise RuntimeError('CUDA error: unknown error')",
)


def lines(group: Group, index: int) -> list[dict[str, Any]]:
    """What was written about one item, in the order of elements and attempts."""
    paths = sorted(group.folder.glob("elements/*/attempts/*/journal.jsonl"))
    every = [json.loads(text) for path in paths for text in path.read_text().splitlines()]
    return [line for line in every if index in (line.get("begin"), line.get("retry"), line.get("index"))]


def test_an_item_is_tried_again_by_itself(bench: Bench):
    group = Group(bench, 3, 3, source=FLAKY_ITEM, failing=(2,), retries=2)

    group.start(1).wait(150)

    assert [len(group.began(x)) for x in range(3)] == [1, 3, 1]
    assert group.ends() == {x: ["returned"] for x in range(3)}
    end = lines(group, 1)[-1]
    assert end["earlier"] == [line["told"] for line in lines(group, 1) if "retry" in line]
    assert "CUDA error: unknown error; retried (2 of 2)" in end["earlier"][1]
    assert group.value(1, 1) == 1


def test_the_output_of_an_item_is_that_of_its_last_attempt(bench: Bench):
    source = FLAKY_ITEM.replace("    while x in", "    print('item', x, os.getpid(), flush=True)\n    while x in")
    group = Group(bench, 3, 3, source=source, failing=(1,), retries=1)

    group.start(1).wait(150)

    printed = (group.folder / "elements" / "1" / "attempts" / "1" / "stdout").read_text()
    places = [group.line(index)["out"] for index in range(3)]
    shown = [printed[begin : begin + size] for begin, size in places]
    assert shown == [f"item {x} {group.began(x)[-1]}\n" for x in range(3)]
    assert printed.count("\n") == 4


def die(group: Group, number: int, index: int, starts: int) -> None:
    """Kill the supervisor of an element at which an item runs for the so many-th time, and conclude for it."""
    (worker, *_) = until(lambda: group.began(index)[starts - 1 :])
    os.kill(supervisor_of(group.folder_of(number)), signal.SIGKILL)
    assert until(lambda: not is_running(worker))
    for process in group.bench.started:
        process.wait(150)
    verdict = {"kind": "lost", "message": "its machine is gone", "withdraw": False}
    group.call("conclude", number, stdin=json.dumps(verdict))


def test_an_item_whose_element_was_lost_runs_again_elsewhere(bench: Bench):
    group = Group(bench, 2, 2, waiting=(0,), retries=1)
    group.start(1)
    die(group, 1, 0, 1)
    group.go()

    group.start(2).wait(150)

    assert [len(group.began(x)) for x in range(2)] == [2, 1]
    assert group.ends() == {0: ["returned"], 1: ["returned"]}
    assert lines(group, 0)[-1]["earlier"] == ["attempt 1 failed: its machine is gone; retried (1 of 1)"]


def test_an_item_that_is_lost_too_often_is_given_up(bench: Bench):
    group = Group(bench, 2, 2, waiting=(0,), retries=1)
    group.start(1)
    die(group, 1, 0, 1)
    group.start(2)
    die(group, 2, 0, 2)

    group.start(3).wait(150)

    assert [len(group.began(x)) for x in range(2)] == [2, 1]
    assert group.ends() == {0: ["lost"], 1: ["returned"]}
    assert len(lines(group, 0)[-1]["earlier"]) == 1


def _starting(folder: Path) -> dict[str, Any] | None:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return next((event for event in map(json.loads, lines) if event["event"] == "starting"), None)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


SAVES = """
def f(fails):
    import os
    path = os.path.join(os.environ["CLUSTERFN_CHECKPOINT"], "epochs", "last")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    done = os.path.getsize(path) if os.path.exists(path) else 0
    with open(path, "a") as file:
        file.write("x")
    if fails:
        os._exit(1)
    return done
"""


def test_a_job_that_resumes_another_begins_with_a_copy_of_its_checkpoint(bench: Bench):
    first, outcome = bench.run(SAVES, True)

    again = [bench.run(SAVES, False, resume=first.id) for _ in range(2)]

    assert outcome["checkpoint"] is True
    assert [(job.value(), done["checkpoint"]) for job, done in again] == [(1, False)] * 2
    assert (first.folder / "checkpoint" / "epochs" / "last").read_text() == "x"
    assert [path.name for path in again[0][0].folder.glob("checkpoint*")] == ["checkpoint"]


def test_a_fifo_in_a_checkpoint_is_noted_and_not_read(bench: Bench):
    first, _ = bench.run(SAVES, True)
    os.mkfifo(first.folder / "checkpoint" / "epochs" / "pipe")

    job, outcome = bench.run(SAVES, False, resume=first.id)

    assert job.value() == 1
    note = f"not copied from the checkpoint of job {first.id}, because it is not a file: epochs/pipe"
    assert note in outcome["notes"]


def test_an_attempt_after_the_first_keeps_its_own_checkpoint(bench: Bench):
    first, _ = bench.run(SAVES, True)
    job = bench.job(FLAKY, 1, retries=1, resume=first.id)

    assert job.start().wait(150) == 0
    assert job.outcome(2)["kind"] == "returned"


def test_a_job_whose_checkpoint_to_resume_is_gone_does_not_run(bench: Bench):
    _, outcome = bench.run(SAVES, False, resume="0" * 16)

    assert (outcome["kind"], outcome["stage"]) == ("unsatisfiable", "start")
    assert "checkpoint of job 0000000000000000" in outcome["message"]
