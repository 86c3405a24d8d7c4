"""Before an outcome is written, SLURM is asked once whether it starts the job again: then there is none yet."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.group import Group
from tests.bridge.host import Bench

# Ends by a value, by the status of a command, or by a signal; in a second start by a value.
ENDS = """
def f(end):
    import os, signal
    if os.environ.get("SLURM_RESTART_COUNT") or end == "value":
        return 1
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    from _clusterfn.bridge.worker.execute import CallRejected
    raise CallRejected("command", "exit status %d" % end, code=end)
"""
SCONTROL = """#!/bin/sh
echo "$*" >>'{folder}/words'
case "$*" in
    *config*) echo "RequeueExit             = 3,90-99" ;;
    *) {answer} ;;
esac
"""
REQUEUED = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-11-23T10:00:00 DUE TO JOB REQUEUE ***\n"


def answer(state: str, restarts: int) -> str:
    return f"echo JobId=77 JobState={state} Restarts={restarts}"


ASKED, ELSEWHERE, RUNS, SILENT = answer("COMPLETING", 1), answer("PENDING", 1), answer("RUNNING", 0), "exit 1"


@pytest.fixture
def scontrol(tmp_path: Path) -> Any:
    def says(words: str) -> str:
        (tmp_path / "scontrol").write_text(SCONTROL.format(folder=tmp_path, answer=words))
        (tmp_path / "scontrol").chmod(0o755)
        return f"{tmp_path}:{os.environ['PATH']}"

    return says


def asked(tmp_path: Path) -> int:
    """How often scontrol was asked about the job."""
    words = tmp_path / "words"
    return words.read_text().count("show job") if words.exists() else 0


@pytest.mark.parametrize(
    ("says", "log", "end", "kind", "cause", "status"),
    [
        (ASKED, REQUEUED, "value", "preempted", "asked", 10),
        pytest.param(ASKED, REQUEUED, 143, "preempted", "asked", 10, marks=pytest.mark.long),
        (ASKED, REQUEUED, "killed", "preempted", "asked", 10),
        (ASKED, "", "value", "preempted", "preempted", 10),
        (SILENT, REQUEUED, "value", "preempted", "asked", 10),
        (ELSEWHERE, "", "value", "returned", None, 0),
        (ELSEWHERE, "", 1, "preempted", "node", 10),
        (RUNS, "", "value", "returned", None, 0),
        pytest.param(RUNS, "", 143, "command", None, 10, marks=pytest.mark.long),
        (RUNS, "", "killed", "signal", None, 10),
        (RUNS, "", 98, "preempted", "status", 98),
        pytest.param(RUNS, "", 100, "command", None, 10, marks=pytest.mark.long),
        (SILENT, "", "value", "returned", None, 0),
    ],
)  # fmt: skip
def test_an_attempt_after_which_slurm_starts_the_job_again_is_not_the_last(
    bench: Bench, scontrol: Any, says: str, log: str, end: Any, kind: str, cause: str | None, status: int
) -> None:
    job = bench.job(ENDS, end, scheduler="slurm", restarts=True)
    (job.folder / "scheduler.log").write_text(log)

    ended = job.call("run", SLURM_JOB_ID="77", PATH=scontrol(says))

    found = job.outcome()
    assert (found["kind"], (found["requeued"] or {}).get("cause"), ended.returncode) == (kind, cause, status)
    assert ("scontrol did not say" in " ".join(found["notes"])) is (says == SILENT and not log)
    if (says, end) == (ASKED, 143):
        again = {"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1", "PATH": scontrol(answer("RUNNING", 1))}
        assert job.call("run", **again).returncode == 0
        assert (job.outcome(2)["kind"], job.outcome(2)["earlier"]) == ("returned", [found["message"]])
        assert found["message"].startswith("attempt 1 was requeued: ")


def test_a_job_that_slurm_may_not_start_again_asks_nothing(bench: Bench, scontrol: Any, tmp_path: Path) -> None:
    job = bench.job(ENDS, "value", scheduler="slurm")
    job.start(SLURM_JOB_ID="77", PATH=scontrol(ASKED)).wait(150)
    assert (job.outcome()["kind"], asked(tmp_path)) == ("returned", 0)

    other = bench.job(ENDS, "value", scheduler="slurm", restarts=True)
    other.start(SLURM_JOB_ID="77", PATH=scontrol(RUNS)).wait(150)
    assert asked(tmp_path) == 1


def test_a_request_is_not_counted_as_a_cause_of_requeue(bench: Bench, scontrol: Any) -> None:
    job = bench.job(ENDS, "value", scheduler="slurm", restarts=True, requeue={"preempted": 1})
    (job.folder / "scheduler.log").write_text(REQUEUED)
    job.start(SLURM_JOB_ID="77", PATH=scontrol(ASKED)).wait(150)
    assert job.outcome()["requeued"] == {"cause": "asked"}

    preempted = bench.job(ENDS, "value", scheduler="slurm", restarts=True, requeue={"preempted": 1})
    preempted.start(SLURM_JOB_ID="77", PATH=scontrol(ASKED)).wait(150)
    assert preempted.outcome()["requeued"] == {"cause": "preempted", "count": 1, "of": 1}


def element(group: Group, path: str, **env: str) -> int:
    env.update(SLURM_JOB_ID="80", SLURM_ARRAY_JOB_ID="80", SLURM_ARRAY_TASK_ID="1", PATH=path)
    return group.start(1, **env).wait(150)


@pytest.mark.parametrize("retries", [0, 1])
def test_an_item_whose_element_is_started_again_runs_again(bench: Bench, scontrol: Any, retries: int) -> None:
    # As of a script, which may have asked for that and returned before it was ended.
    group = Group(bench, 2, 2, scheduler="slurm", restarts=True, retries=retries, has_value=False)

    assert element(group, scontrol(ASKED)) == 10
    assert (group.outcome(1)["kind"], group.ends()) == ("preempted", {}), "the first item has no end"
    assert element(group, scontrol(answer("RUNNING", 1)), SLURM_RESTART_COUNT="1") == 0

    assert group.ends() == {0: ["returned"], 1: ["returned"]}
    assert not group.line(0).get("earlier")
    assert [len(group.began(x)) for x in (0, 1)] == [2, 1]
    words = [json.loads(line) for line in (group.folder_of(1) / "attempts/1/journal.jsonl").read_text().splitlines()]
    assert [line.get("requeued") for line in words] == [None, True]


def test_a_value_of_an_item_is_kept_whatever_becomes_of_its_element(
    bench: Bench, scontrol: Any, tmp_path: Path
) -> None:
    group = Group(bench, 2, 2, scheduler="slurm", restarts=True)

    assert element(group, scontrol(ASKED)) == 0

    assert group.ends() == {0: ["returned"], 1: ["returned"]}
    assert asked(tmp_path) == 0, "a map of 10,000 short items must not ask as often"


# As where the node is lost: no word of the first attempt.
@pytest.mark.parametrize(("restarts", "kinds"), [(True, ["returned"]), (False, ["lost"])])
def test_an_item_that_sent_no_word_runs_again_with_its_element_where_slurm_may_start_that_again(
    bench: Bench, scontrol: Any, restarts: bool, kinds: list[str]
) -> None:
    group = Group(bench, 1, 1, scheduler="slurm", **({"restarts": True} if restarts else {}))
    attempt = group.folder_of(1) / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "owner").write_text("80_1")
    (attempt / "journal.jsonl").write_text('{"begin": 0}\n')
    (group.folder_of(1) / "claim").write_text("80_1")
    (group.folder / "claims").mkdir()
    (group.folder / "claims" / "0").write_text("1 0 1")

    element(group, scontrol(answer("RUNNING", 1)), SLURM_RESTART_COUNT="1")

    assert group.ends() == {0: kinds}
