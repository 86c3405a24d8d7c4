"""A program that submits faster than the way to its host takes calls: it waits, says so, and goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.calls import sending
from clusterfn.hosts.connection import HostConnection, TreeFile
from tests.fakes.transport import FakeTransport, agent
from tests.unit.hosts.in_memory import HOST, OK, hold_back

JOB = bytes(16 << 10)


@pytest.fixture
def connection() -> Iterator[Any]:
    """One whose host takes no bytes until `flows` is set."""
    transport = FakeTransport(agent(lambda request, body: [(OK, b"")] if request["do"] in ("put", "have") else []))
    made: Any = HostConnection(HOST, transport)
    made.flows = hold_back(transport)
    yield made
    made.flows.set()
    made.close()


def put(connection: HostConnection, number: int, data: bytes = JOB) -> Any:
    return connection.put_tree(f"/jobs/{number}", [TreeFile("payload.pkl", data)])


def test_what_is_queued_for_a_host_that_takes_nothing_is_bounded(connection: Any) -> None:
    count = 0
    while connection.link.has_room(0.0):
        put(connection, count)
        count += 1
        assert count * len(JOB) < 10 << 20
    assert count * len(JOB) > 4 << 20

    connection.flows.set()

    assert connection.link.has_room(150)


def test_a_large_file_on_its_way_leaves_room_for_small_calls(connection: Any) -> None:
    put(connection, 1, bytes(20 << 20))

    assert connection.link.has_room(0.0)


def test_a_program_that_waits_says_so_and_goes_on(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "REPORT_AFTER_S", 0.2)
    said: list[str] = []
    monkeypatch.setattr(sending.console, "tell", lambda line: (said.append(line), connection.flows.set()))
    for number in range(600):
        put(connection, number)

    sending.await_room(SimpleNamespace(connection=connection, settings=HOST))  # type: ignore[arg-type]

    assert said == ["waiting to send more calls to lab8: it takes them slowly"]


def test_a_closed_connection_keeps_nobody_waiting(connection: Any) -> None:
    for number in range(600):
        put(connection, number)
    assert not connection.link.has_room(0.0)
    threading.Timer(0.2, connection.close).start()

    assert connection.link.has_room(150)
