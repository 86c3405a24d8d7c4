"""Items that start as their inputs end: which of them can run, when an element starts, and what SLURM is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.queue.held_back import HeldBack
from clusterfn.bridge.queue.tickets import Ticket
from clusterfn.bridge.supervisor.awaiting import ItemInputs, Takers, item_inputs_of, register_array
from clusterfn.bridge.supervisor.dependencies import Dependencies
from clusterfn.bridge.supervisor.group_files import Chunks
from clusterfn.bridge.supervisor.job import JobFolder, dependencies_of
from tests.fakes.job_spec import job_spec
from tests.unit.bridge.supervisor.test_dependencies import TRAIN, end, lay

SCORE = "50f1" * 4


def told(home: Path, *indices: int, kind: str = "returned") -> None:
    """Append the ends of items to the journal of the first element."""
    attempt = home / "elements" / "1" / "attempts" / "1"
    attempt.mkdir(parents=True, exist_ok=True)
    with (attempt / "journal.jsonl").open("a") as file:
        for index in indices:
            file.write(json.dumps({"index": index, "kind": kind, "message": f"item {index}"}) + "\n")


def taking(root: Path, count: int, elements: int) -> Path:
    """Lay a group of which each item takes the same item of TRAIN."""
    after = {TRAIN: {"name": "train", "items": list(range(count))}}
    group = {"count": count, "elements": elements, "block": 1, "chunk": 1}
    home = lay(root, SCORE, group=group, after=after)
    inputs = {"all": (), "items": [[[TRAIN, index]] for index in range(count)]}
    (home / "item_inputs.json").write_text(json.dumps(inputs))
    return home


def inputs_of(home: Path) -> ItemInputs:
    found = item_inputs_of(str(home), json.loads((home / "spec.json").read_text()), Dependencies(str(home.parents[1])))
    assert found is not None
    return found


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return lay(tmp_path, group={"count": 10, "elements": 10})


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path, train):
    inputs = inputs_of(taking(tmp_path, 10, 5))
    told(train, 0)
    journal = train / "elements" / "1" / "attempts" / "1" / "journal.jsonl"
    with journal.open("a") as file:
        file.write('{"index": 1, "ki')
    assert inputs.ready() == [0]
    with journal.open("a") as file:
        file.write('nd": "returned"}\n')
    inputs.look_again()
    assert inputs.ready() == [0, 1]


@pytest.mark.parametrize("count, elements", [(10, 10), (10, 3), (7, 5), (3, 1), (50, 50)])
def test_an_element_starts_with_its_share_and_the_last_with_all(tmp_path, train, count, elements):
    inputs = inputs_of(taking(tmp_path, count, elements))

    shares = [inputs.threshold(element) for element in range(1, elements + 4)]
    assert shares[elements - 1 :] == [count] * 4, "the last, and all that are started later"
    for element, share in enumerate(shares[:elements], 1):
        assert element * count <= share * elements < element * count + elements


def test_a_block_that_was_given_back_or_whose_element_has_died_lets_an_element_start(tmp_path, train):
    home = taking(tmp_path, 4, 2)
    chunks, inputs = Chunks(str(home), json.loads((home / "spec.json").read_text())["group"]), inputs_of(home)
    chunks.make_folders()
    told(train, 0, 1, 2)
    inputs.look_again()
    assert inputs.untaken() == [0, 1, 2]

    assert chunks.take_all(1) == [0, 1, 2, 3] and inputs.untaken() == []
    chunks.give_back(1, 1)
    assert inputs.untaken() == [1]
    assert chunks.take_over(2) == 1 and inputs.untaken() == []
    chunks.finish(0)
    attempt = home / "elements/1/attempts/1"
    attempt.mkdir(parents=True)
    (attempt / "outcome.json").write_text(json.dumps({"kind": "died", "final": True}))
    assert inputs.untaken() == [2, 3], "what it had not finished"
    assert chunks.take_over(2) == 2 and chunks.take_over(2) == 3 and inputs.untaken() == []


def test_as_many_elements_start_as_there_are_items_that_can_run(tmp_path, train):
    home = taking(tmp_path, 4, 4)
    told(train, 0, 1)
    facts: dict[str, Any] = dict.fromkeys(Ticket._fields)
    facts.update(home=str(home), after=tuple(dependencies_of(json.loads((home / "spec.json").read_text()))))
    waiting = [Ticket(**{**facts, "job": f"{SCORE}.{number}", "element": number}) for number in (1, 2, 3, 4)]

    assert sorted(HeldBack(str(tmp_path)).reasons(waiting)) == [f"{SCORE}.3", f"{SCORE}.4"]


def test_what_items_have_returned_outlives_the_processes_of_their_group(tmp_path, train):
    (train / "spec.json").write_text(json.dumps(job_spec(train, group={"count": 10, "elements": 10})))
    inputs = inputs_of(taking(tmp_path, 10, 5))
    told(train, 1)
    told(train, 4, kind="raised")
    for path in train.rglob("*"):
        os.utime(path, (1e9, 1e9))

    assert inputs.ready() == list(range(10)), "no process of it is left"
    assert inputs.failure(1) is None
    raised, lost = inputs.failure(4), inputs.failure(5)
    assert raised is not None and raised.message == "train (7f3a)[4] has no value: item 4"
    assert lost is not None and "no process of it is left" in lost.message


# what SLURM is told


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that plays scontrol; the file in which it writes what it was asked."""
    asked, program = tmp_path / "asked", tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> "{asked}"\n[ ! -e "{tmp_path}/refuses" ] || {{ echo no; exit 1; }}\n')
    program.chmod(0o755)
    asked.touch()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return asked


def test_slurm_starts_an_element_once_its_share_can_run(tmp_path, train, scontrol):
    home = taking(tmp_path, 10, 5)
    register_array(str(home), "631", "0", "5", "")
    assert scontrol.read_text() == "", "nothing can run"
    elsewhere, here = (Takers(JobFolder(str(train))) for _ in range(2))

    told(train, 9)
    here.tell()
    assert scontrol.read_text() == "", "the first share has two items"
    told(train, 0, 5, 3)
    here.tell()
    assert scontrol.read_text() == "update JobId=631_[1,2] Dependency=\n"
    elsewhere.tell()
    told(train, 1, 2, 4, 6, 7, 8)
    here.tell()
    elsewhere.tell()
    assert scontrol.read_text().splitlines()[1:] == ["update JobId=631_[3,4] Dependency="], "the last waits for all"


def test_what_can_run_when_the_group_is_sent_starts_at_once_and_keeps_the_users_condition(tmp_path, train, scontrol):
    home = taking(tmp_path, 10, 10)
    told(train, 4, 5, 6)
    register_array(str(home), "632", "1", "9", "afterok:7")

    # Elements 2 and on are the tasks 1 and on of this array.
    assert scontrol.read_text() == "update JobId=632_[1,2] Dependency=afterok:7\n"


def test_scontrol_is_not_asked_of_what_was_stopped_or_has_ended(tmp_path, train, scontrol):
    home = taking(tmp_path, 10, 10)
    register_array(str(home), "631", "0", "10", "")
    takers = Takers(JobFolder(str(train)))
    (home / "cancel").touch()
    told(train, 0)
    takers.tell()
    (home / "cancel").unlink()
    end(home, "returned")
    takers.tell()
    assert scontrol.read_text() == ""


def test_a_refusal_is_noted_and_scontrol_is_asked_no_more_after_two(tmp_path, train, scontrol, capfd):
    home = taking(tmp_path, 10, 10)
    register_array(str(home), "631", "0", "10", "")
    (tmp_path / "refuses").touch()
    takers = Takers(JobFolder(str(train)))
    for index in range(4):
        told(train, index)
        takers.tell()

    assert len(scontrol.read_text().splitlines()) == 2
    wanted = f"scontrol refused with status 1: no: the items of {SCORE} start when all inputs have ended"
    assert wanted in capfd.readouterr().err and (home / "released" / "1").read_text() == wanted


def test_a_chunk_that_its_element_finishes_while_another_looks_is_not_taken_over(tmp_path, monkeypatch):
    chunks = Chunks(str(tmp_path), {"count": 2, "chunk": 2, "elements": 2})
    chunks.make_folders()
    assert chunks.take(1, 2) == 0
    monkeypatch.setattr(chunks, "end_of", lambda element: chunks.finish(0) or {"final": True})

    assert chunks.take_over(2) is None
