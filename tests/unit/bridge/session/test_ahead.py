"""What a runner makes for its next call, and the process that brings ended calls to the disk."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge import session
from clusterfn.hosts import serialization


def part(name: str) -> Any:
    serialization.part("container")  # what a session's process has loaded before
    return importlib.import_module(f".{name}", session.__name__)


def new_process(others: Any) -> Any:
    """A process of a call that has neither a life nor descriptors."""
    return SimpleNamespace(others=others, fds=list, pid=0)


def test_the_kernels_counters_are_read_after_each_call_and_again_if_the_next_comes_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A kill that one call has survived must not be taken for the end of the next."""
    ahead, now = part("ahead"), [100.0]
    monkeypatch.setattr(ahead, "OomDetector", object)
    monkeypatch.setattr(ahead, "time", SimpleNamespace(monotonic=lambda: now[0]))
    made = ahead.Ahead(str(tmp_path), new_process)

    made.prepare()
    first = made.oom()
    assert made.oom() is first, "a call does not wait for them"
    made.prepare()
    second = made.oom()
    assert second is not first
    now[0] += 1.5
    assert made.oom() is not second


def test_the_processes_of_calls_that_wait_are_forked_together_and_each_can_be_ended(tmp_path: Path):
    ahead, spare, others = part("ahead"), part("spare"), []

    def fork(fds: Any) -> Any:
        others.append(len(fds))
        return spare.fork_spare({}, SimpleNamespace(unseeded=[]), fds)

    made = ahead.Ahead(str(tmp_path), fork)
    made.prepare()
    assert others == [0]
    made.dismiss_spares()

    made.waiting = 100
    made.prepare()
    made.prepare()  # they are still there
    pids = made.pids()
    assert others == [0, 0, 4, 8, 12], "the four pipes of each that is there are closed in the next"
    made.dismiss()  # would wait for ever if a later one held the pipe of orders of an earlier one open
    assert not made.pids()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not list(tmp_path.iterdir())


def test_a_reserve_serves_until_an_outcome_has_used_it(tmp_path: Path):
    made = part("ahead").Ahead(str(tmp_path), new_process)
    first = made.reserve()
    assert made.reserve() is first

    Path(first.path).unlink()
    second = made.reserve()
    assert Path(second.path).stat().st_size > 64 << 10
    second.release()
    assert not list(tmp_path.iterdir())


def test_what_ended_last_is_on_the_disk_when_the_flusher_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    flush, log = part("flush"), tmp_path / "synced"

    def sync(attempts: Any) -> None:
        with log.open("a") as file:
            file.writelines(f"{each}\n" for each in attempts)

    monkeypatch.setattr(flush, "sync", sync)
    flusher = flush.Flusher()
    for number in range(3):
        flusher.add(f"/calls/{number}")
    flusher.close()
    assert log.read_text().split() == ["/calls/0", "/calls/1", "/calls/2"]
