"""What a job that takes values finds of the jobs that are to return them: values, failures, and nothing at all."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.supervisor.dependencies import Dependencies, keep_exception
from clusterfn.bridge.supervisor.job import Dependency, dependencies_of, describe_waiting
from clusterfn.bridge.supervisor.process_tree import boot_id
from clusterfn.bridge.supervisor.verdict import Verdict
from tests.fakes.job_spec import lay_job

TRAIN = "7f3a" * 4
WANTED = [Dependency(TRAIN, "train", None)]


def lay(root: Path, job: str = TRAIN, **spec: Any) -> Path:
    """Make the folder of a job that has not begun."""
    return lay_job(root, job, **{"scheduler": "slurm", "sys_path": ["/own"], **spec})


def end(folder: Path, kind: str, number: int = 1, final: bool = True, **facts: Any) -> Path:
    """Publish an outcome of one of its attempts; the attempt."""
    attempt = folder / "attempts" / str(number)
    attempt.mkdir(parents=True)
    told = {"kind": kind, "final": final, "message": None, **facts}
    (attempt / "outcome.json").write_text(json.dumps(told))
    return attempt


def test_a_job_is_open_until_an_outcome_is_final(tmp_path):
    found, folder = Dependencies(str(tmp_path)), lay(tmp_path)
    assert found.still_open(WANTED) == WANTED and found.failure(WANTED) is None

    end(folder, "preempted", 1, final=False)
    found.look_again()
    assert found.still_open(WANTED) == WANTED

    attempt = end(folder, "returned", 2, value={"size": 9, "crc": 1})
    assert found.still_open(WANTED) == WANTED, "it looks only when it is told to"
    found.look_again()
    assert found.still_open(WANTED) == [] and found.failure(WANTED) is None
    assert abs(found.ended_at(WANTED) - time.time()) < 60
    assert found.places(WANTED) == {
        TRAIN: {
            "name": "train", "folders": ["/own"], "group": False, "lost": None,
            "places": {"0": [str(attempt / "value.pkl"), 0, 9, None]},
        }
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "[]", "[1]", "{", "\xff", '{"final": false}'])
def test_an_outcome_that_cannot_be_read_counts_as_none(tmp_path, text):
    attempt = end(lay(tmp_path), "returned")
    (attempt / "outcome.json").write_text(text)

    assert Dependencies(str(tmp_path)).still_open(WANTED) == WANTED


@pytest.mark.parametrize("facts", [{"final": True}, {"final": True, "kind": "returned", "value": 5}])
def test_an_outcome_that_its_function_has_damaged_is_a_failure(tmp_path, facts):
    (end(lay(tmp_path), "returned") / "outcome.json").write_text(json.dumps(facts))
    found = Dependencies(str(tmp_path))

    assert found.still_open(WANTED) == []
    failed = found.failure(WANTED)
    assert failed is not None and "its files on the host are damaged" in failed.message
    assert found.places(WANTED)[TRAIN]["places"]["0"][3]["kind"] == "lost"


@pytest.mark.parametrize(
    "line", [{"index": 0}, {"index": [0], "kind": "returned"}, {"index": 0, "kind": "returned", "value": 3}]
)
def test_a_journal_that_an_item_has_damaged_is_a_failure(tmp_path, line):
    home = lay(tmp_path, group={"count": 1})
    end(home, "returned")
    attempt = home / "elements" / "1" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "journal.jsonl").write_text(json.dumps(line) + "\n")

    failed = Dependencies(str(tmp_path)).failure(WANTED)
    assert failed is not None and "damaged" in failed.message


def test_a_folder_that_cannot_be_looked_at_is_not_taken_for_a_missing_one(tmp_path, monkeypatch):
    def fails(path, **_):
        raise PermissionError(13, "Permission denied", path)

    lay(tmp_path)
    monkeypatch.setattr("clusterfn.bridge.supervisor.dependencies.os.stat", fails)
    assert Dependencies(str(tmp_path)).still_open(WANTED) == WANTED


@pytest.mark.parametrize("scheduler, is_open", [("bare", False), ("local", False), ("slurm", True)])
def test_without_a_scheduler_a_job_is_given_up_whose_processes_are_gone(tmp_path, scheduler, is_open):
    folder, long_ago = lay(tmp_path, scheduler=scheduler), time.time() - 1000
    started = folder / "started"
    started.write_text(f"{boot_id()} 1 (sh) S " + " ".join(["0"] * 40))  # pid 1 did not begin at that time
    assert Dependencies(str(tmp_path)).still_open(WANTED) == WANTED, "it may be about to write its first heartbeat"

    for path in (started, folder / "spec.json"):
        os.utime(path, (long_ago, long_ago))
    found = Dependencies(str(tmp_path))
    assert found.still_open(WANTED) == (WANTED if is_open else [])
    failed = found.failure(WANTED)
    assert (failed is None) == is_open
    if failed is not None:
        assert "no process of it is left" in failed.message


def test_a_job_that_waits_in_the_queue_or_runs_is_open_however_long_ago_it_was_sent(tmp_path):
    folder, long_ago = lay(tmp_path, scheduler="bare"), time.time() - 1e6
    os.utime(folder / "spec.json", (long_ago, long_ago))
    assert Dependencies(str(tmp_path)).still_open(WANTED) == []

    ticket = tmp_path / "machines" / "here" / "queue" / f"{TRAIN}.3"
    ticket.parent.mkdir(parents=True)
    ticket.touch()
    assert Dependencies(str(tmp_path)).still_open(WANTED) == WANTED
    ticket.unlink()

    starting = tmp_path / "machines" / "here" / "starting"
    starting.touch()
    assert Dependencies(str(tmp_path)).still_open(WANTED) == WANTED, "it may wait in an agent to be started"
    os.utime(starting, (long_ago, long_ago))

    kept = tmp_path / "machines" / "here" / "interrupted" / TRAIN
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"boot": boot_id()}))
    assert Dependencies(str(tmp_path)).still_open(WANTED) == [], "nothing requeues it before a restart"
    kept.write_text(json.dumps({"boot": "the one before"}))
    assert Dependencies(str(tmp_path)).still_open(WANTED) == WANTED, "it is requeued by what looks next"

    kept.unlink()
    (folder / "started").write_text(f"{boot_id()} {Path(f'/proc/{os.getpid()}/stat').read_text()}")
    os.utime(folder / "started", (long_ago, long_ago))
    assert Dependencies(str(tmp_path)).still_open(WANTED) == WANTED


def test_what_a_spec_names_is_described_in_a_line():
    many = {f"{n:016x}": {"name": f"f{n}", "items": None} for n in range(5)}

    told = describe_waiting(dependencies_of({"after": many}))
    assert told == "waiting for f0 (0000), f1 (0000), f2 (0000) and 2 more"
    assert dependencies_of({}) == []


def test_a_job_counts_as_refused_for_now_as_long_as_its_program_renews_that(tmp_path):
    note = lay(tmp_path) / "refused"
    assert not Dependencies(str(tmp_path)).is_refused(TRAIN)

    note.write_text("you have as many jobs as you may have there")
    assert Dependencies(str(tmp_path)).is_refused(TRAIN)

    os.utime(note, (time.time() - 1200.0,) * 2)
    assert not Dependencies(str(tmp_path)).is_refused(TRAIN)


def test_the_exception_of_an_input_takes_the_place_of_a_longer_value(tmp_path: Path):
    (tmp_path / "values.pkl").write_bytes(b"..abc..")
    (tmp_path / "value.pkl").write_bytes(b"a value before")
    failed = Verdict("dependency", exception_at=(str(tmp_path / "values.pkl"), 2, 3))

    assert keep_exception(failed, str(tmp_path / "value.pkl")).value == {"size": 3}
    assert (tmp_path / "value.pkl").read_bytes() == b"abc"
    (tmp_path / "values.pkl").unlink()
    assert keep_exception(failed, str(tmp_path / "value.pkl")).value is None
