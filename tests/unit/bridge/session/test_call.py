"""A call of a session as a job: what is its own, whose turn it is, what is made ahead, and what its client is sent."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.supervisor.classify_exit import classify_silence
from tests.unit.bridge.session.serving import Client, Server, headers_of, part
from tests.unit.bridge.session.test_door import kill_the_runner, note_and_stay
from tests.waiting import WAIT_S, until

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


def test_events_that_wait_at_the_end_of_a_call_are_not_written_after_it(tmp_path: Path, monkeypatch):
    call, said, now = part("call"), list[str](), [1000.0]
    monkeypatch.setattr(call, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
    folder = tmp_path / "calls" / "1"
    folder.mkdir(parents=True)
    attempt = call.CallAttempt(call.CallJob(str(folder), SPEC), lambda what, data, **facts: said.append(what))
    attempt.event("starting")

    attempt.publish(call.Verdict("returned"))

    now[0] += 60.0
    attempt.tick()
    assert (said, sorted(os.listdir(folder))) == (["end"], ["outcome.json", "work"])


def test_an_actor_whose_construction_could_not_be_recorded_is_gone_as_its_client_learns(tmp_path, monkeypatch):
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


def ahead_of(folder: Path) -> Any:
    call_process = part("call_process")
    return call_process.Ahead(str(folder), lambda: call_process.fork_call_process({}, SimpleNamespace(generators=[])))


def test_a_process_that_is_stopped_or_dead_holds_up_no_end_and_one_that_died_costs_no_descriptor(tmp_path: Path):
    made, before = ahead_of(tmp_path), len(os.listdir("/dev/fd"))
    made.prepare()
    [dead] = made.pids()
    os.kill(dead, signal.SIGKILL)
    os.waitpid(dead, 0)

    given = made.give("/call", "/call", {})
    assert given.pid != dead
    given.dismiss()
    made.prepare()
    os.kill(made.pids()[0], signal.SIGSTOP)
    made.dismiss()
    assert len(os.listdir("/dev/fd")) <= before


# Once the gate is there, no worker gets as far as to wait for a call.
DIE_AT_THE_GATE = """
import os
from clusterfn.hosts import serialization
serialization.part("container")
from clusterfn.bridge.session import runner
serve_calls = runner.CallRunner.serve
runner.CallRunner.serve = lambda self: os._exit(7) if os.path.exists({gate!r}) else serve_calls(self)
"""


def test_a_session_whose_workers_die_at_once_ends_with_its_other_calls(start: Callable[..., Server], tmp_path: Path):
    gate, pids = tmp_path / "gate", tmp_path / "pids"
    server = start(workers=2, before=DIE_AT_THE_GATE.format(gate=str(gate)))
    client = Client(server)
    client.send(1, note_and_stay, str(pids))
    until(lambda: pids.exists() and pids.read_text().endswith("\n"))

    gate.touch()
    client.send(2, kill_the_runner)

    assert server.process.wait(WAIT_S) != 0
    until(lambda: not Path("/proc", pids.read_text().strip()).exists())


Line = tuple[Any, Callable[[], list[dict[str, Any]]]]


@pytest.fixture
def line() -> Iterator[Line]:
    """A client as the session sees it, which has heard that call 1 is taken; and what comes to it."""
    ours, its = socket.socketpair()

    def come() -> list[dict[str, Any]]:
        try:
            return headers_of(its.recv(1 << 20))
        except BlockingIOError:
            return []

    with ours, its:
        for end in (ours, its):
            end.setblocking(False)
        client = part("connections").ClientConnection(ours, part("connections").SocketWatcher(), lambda *_: None)
        client.has_taken(1)
        yield client, come


def test_a_call_that_was_taken_is_said_with_the_next_frame_or_by_itself(line: Line):
    client, come = line
    client.send("end", n=1)
    client.has_taken(2)
    client.flush()

    assert [(header["what"], header["taken"]) for header in come()] == [("end", 1), ("taken", 2)]


def test_a_value_that_is_gone_is_not_said_to_be_there(tmp_path: Path):
    connections, said = part("connections"), list[tuple[bytes, bool]]()
    connection: Any = SimpleNamespace(send=lambda what, data, n, outcome, has_value: said.append((data, has_value)))
    (tmp_path / "value").write_bytes(b"value")
    heard = connections.Listener(connection, 1, True)

    for name, size in (("value", 5), ("gone", 5), ("value", connections.SMALL_VALUE + 1), ("gone", 0)):
        heard.pass_on("end", b"{}", str(tmp_path / name), size)

    assert said == [(b"{}value", True), (b"{}", False), (b"{}", False), (b"{}", True)]
