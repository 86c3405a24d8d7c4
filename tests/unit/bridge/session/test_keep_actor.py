"""What is told of an actor whose construction left no outcome on the disk."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.bridge.session.serving import part


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

    link = SimpleNamespace(say=lambda **facts: said.append(facts), voice=lambda *_, **__: None)
    assert keep_actor.keep_actor(link, kept)
    why = "its construction could not be recorded"
    assert said == [{"what": "next", "n": 1, "ran": True}, {"what": "gone", "reason": why}]
