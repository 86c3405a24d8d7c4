"""Tickets as files: what their reader remembers of them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.queue import launch, tickets
from clusterfn.bridge.queue.tickets import Queue

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a queue is on Linux")

ELEMENT = "0123456789abcdef.1"


def told(submitted: int, queue_timeout_s: float | None) -> dict[str, Any]:
    """What is written on a ticket."""
    resources = {"cores": 1, "gpus": 1, "memory_bytes": None, "time_s": None, "gpu_type": None}
    return {
        "job": ELEMENT, "name": "f", "folder": "/f", "home": "/h", "element": 1, "submitted": submitted, "t": 1.0,
        "reason": "", "asked": {"gpus": 1, "cores": 1, "memory_mb": 0}, "resources": resources,
        "limits": dict.fromkeys(("gpus", "cores", "memory_mb", "jobs")), "queue_timeout_s": queue_timeout_s,
        "bridge": "/b", "env": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"asked": {"gpus": "two", "cores": 1, "memory_mb": 0}}, {"asked": {"gpus": 1}}, {"submitted": "yesterday"},
        {"home": "/h\0"}, {"env": {"A": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_a_ticket_with_a_wrong_value_is_removed(tmp_path: Path, wrong: dict[str, Any]):
    queue = Queue(str(tmp_path))
    queue.write({**told(10**9, None), **wrong})

    assert queue.read() == [] == queue.names()


@pytest.mark.parametrize("text", ["", "[[1, 2]]", "{", "{}", "[" * 10**5])
def test_a_file_that_is_no_ticket_is_removed(tmp_path: Path, text: str):
    queue = Queue(str(tmp_path))
    queue.write(told(10**9, None))
    Path(queue.folder, ELEMENT).write_text(text)

    assert queue.read() == [] == queue.names()


def fails(path: str) -> os.stat_result:
    raise OSError(116, "Stale file handle", path)


def test_an_element_that_gave_way_waits_by_its_new_ticket_though_nobody_saw_the_old_one_go(tmp_path: Path):
    queue = Queue(str(tmp_path))
    queue.write(told(10**9, 60.0))
    assert queue.of(ELEMENT).timeout_s == 60.0

    queue.write(told(2 * 10**9, None))

    (ticket,) = queue.read()
    assert (ticket.submitted, ticket.timeout_s) == (2 * 10**9, None)


def test_a_ticket_that_cannot_be_looked_at_for_a_moment_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    queue = Queue(str(tmp_path))
    queue.write(told(10**9, None))
    (before,) = queue.read()

    with monkeypatch.context() as away:
        away.setattr(os, "stat", fails)
        away.setattr(queue, "fields", lambda job: None)
        meanwhile = queue.of(ELEMENT)

    assert meanwhile == before


def test_a_wait_counts_from_when_the_environment_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tickets, "time", SimpleNamespace(time=lambda: 1000.0))
    monkeypatch.setattr(tickets.machine, "now_ns", lambda: 900 * 10**9)
    ready = tmp_path / "READY"
    fields = {**told(600 * 10**9, 60.0), "t": 700.0, "needs": [str(ready)]}
    ticket = Queue(str(tmp_path)).as_ticket(fields)

    waited = [tickets.waited_s(ticket)]
    for built_at in (900, 600):
        ready.touch()
        os.utime(ready, (built_at, built_at))
        waited.append(tickets.waited_s(ticket))

    assert waited == [0, 100, 300], "while it is made, since it was made, and all of it if it was there before"


def test_a_job_that_another_process_has_requeued_meanwhile_and_that_runs_again_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = tickets.kept_aside(str(tmp_path))
    kept.write(told(10**9, None))
    file = Path(kept.folder) / ELEMENT
    file.write_text(json.dumps({**json.loads(file.read_text()), "boot": "the one before"}))

    @contextlib.contextmanager
    def lock(_: object) -> Iterator[None]:
        kept.write(told(2 * 10**9, None))
        yield

    monkeypatch.setattr(launch, "AdmissionLock", lock)

    assert not launch.requeue_interrupted(str(tmp_path))
    assert kept.names() == [ELEMENT] and Queue(str(tmp_path)).names() == []


def test_the_journal_makes_no_root_that_is_gone(tmp_path: Path):
    tickets.record_event(str(tmp_path / "gone"), "taken", ELEMENT)

    assert os.listdir(tmp_path) == []
