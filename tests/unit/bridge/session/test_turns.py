"""Whose turn it is in a session, and which calls are taken."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.bridge.session.serving import part

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="hosts are no Windows machines")


def test_the_worker_of_an_actor_has_some_calls_ahead_and_the_others_are_lost_with_it():
    turns = part("turns").Turns()
    worker = SimpleNamespace(is_ready=True, actor=0, given=[])
    turns.add(1, {"actor": 1, "name": "Model"})
    assert turns.next_for(worker)[0] == 1
    worker.is_ready, worker.actor = False, 1
    for number in range(2, 22):
        turns.add(number, {"actor": 1})
    turns.add(22, {})

    while (call := turns.next_for(worker)) is not None:
        worker.given.append(call[0])
    assert worker.given == list(range(2, 18)) and turns.count_all_waiting() == 5

    turns.lose(1, "its process was killed", worker.given[1:])
    turns.lose(1, "its session was closed", [])
    turns.add(23, {"actor": 1})
    assert [number for number, _ in turns.lost] == [*range(3, 22), 23]
    assert {actor.gone for _, actor in turns.lost} == {"its process was killed"}
    assert turns.count_all_waiting() == 1


def test_a_call_that_its_client_has_withdrawn_is_not_taken(tmp_path: Path):
    call = part("call")
    assert not call.is_taken(str(tmp_path)) and not call.is_withdrawn(str(tmp_path))
    os.symlink(".", tmp_path / "taken")
    assert not call.is_taken(str(tmp_path)) and call.is_withdrawn(str(tmp_path))
    (tmp_path / "taken").unlink()
    (tmp_path / "taken").mkdir()
    assert call.is_taken(str(tmp_path)) and not call.is_withdrawn(str(tmp_path))
