"""A call of a session as a job: what is the session's and what its own, whose turn it is, and which ones are taken."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.supervisor.classify_exit import classify_silence
from tests.unit.bridge.session.serving import part
from tests.waiting import stays

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="hosts are no Windows machines")
SPEC = {
    "id": "7f3a000011112222", "root": "/root", "scheduler": "bare",
    "resources": {"memory_bytes": 300 << 20, "time_s": 60.0, "gpus": 0},
}  # fmt: skip


def test_a_call_that_is_killed_for_memory_names_what_its_session_asked_for(tmp_path: Path):
    job = part("call").CallJob(str(tmp_path), SPEC)

    verdict = classify_silence(signal.SIGKILL, "function", 290 << 20, job.asked_memory, "the kernel ended it")

    assert "the job used up to 290 MB and asked for 300 MB; the kernel ended it" in verdict.message
    assert job.spec["resources"]["memory_bytes"] is None, "the session's supervisor watches the limit, not the call"


def test_events_that_wait_at_the_end_of_a_call_are_not_written_after_it(tmp_path: Path):
    call, said = part("call"), list[str]()
    folder = tmp_path / "calls" / "1"
    folder.mkdir(parents=True)
    attempt = call.CallAttempt(call.CallJob(str(folder), SPEC), lambda what, data, **facts: said.append(what))
    attempt.event("starting")

    attempt.publish(call.Verdict("returned"))

    stays(lambda: attempt.tick() or said == ["end"], 0.03)
    assert sorted(os.listdir(folder)) == ["outcome.json", "work"]


def test_an_actor_whose_construction_could_not_be_recorded_is_gone_as_its_client_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keep_actor = part("keep_actor")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(keep_actor, "run_through", full)
    for name in ("CallAttempt", "CallWatch", "ActorCallRun", "take_call"):
        monkeypatch.setattr(keep_actor, name, lambda *_: SimpleNamespace())
    first = {"n": 1, "live": False, "facts": {}}
    said: list[dict[str, Any]] = []
    job = SimpleNamespace(folder=str(tmp_path))
    own: dict[str, Any] = dict.fromkeys(("pass_on", "reap", "end"), lambda *_: None)
    ahead = SimpleNamespace(reserve=lambda: None)
    kept = SimpleNamespace(gone="", first=first, signals=None, job=lambda _: job, ahead=ahead, **own)

    link = SimpleNamespace(send=lambda **facts: said.append(facts), reporter=lambda *_, **__: None)
    assert keep_actor.keep_actor(link, kept)
    why = "its construction could not be recorded"
    assert said == [{"what": "next", "n": 1, "ran": True}, {"what": "gone", "reason": why}]


def test_the_worker_of_an_actor_has_some_calls_ahead_and_the_others_are_lost_with_it():
    turns = part("runner").Turns()
    worker = SimpleNamespace(is_ready=True, actor=0, given=[])
    turns.add(1, {"actor": 1, "name": "Model"})
    assert turns.next_for(worker)[0] == 1
    worker.is_ready, worker.actor = False, 1
    for number in range(2, 22):
        turns.add(number, {"actor": 1})
    turns.add(22, {})

    while (call := turns.next_for(worker)) is not None:
        worker.given.append(call[0])
    assert worker.given == list(range(2, 18)) and not turns.is_empty()

    turns.lose(1, "its process was killed", worker.given[1:])
    turns.lose(1, "its session was closed", [])
    turns.add(23, {"actor": 1})
    assert [number for number, _ in turns.lost] == [*range(3, 22), 23]
    assert {actor.gone for _, actor in turns.lost} == {"its process was killed"}
    assert not turns.is_empty()


def test_a_call_that_its_client_has_withdrawn_is_not_taken(tmp_path: Path):
    call = part("call")
    assert not call.is_taken(str(tmp_path)) and not call.is_withdrawn(str(tmp_path))
    os.symlink(".", tmp_path / "taken")
    assert not call.is_taken(str(tmp_path)) and call.is_withdrawn(str(tmp_path))
    (tmp_path / "taken").unlink()
    (tmp_path / "taken").mkdir()
    assert call.is_taken(str(tmp_path)) and not call.is_withdrawn(str(tmp_path))
