"""A program that submits faster than the way to its host takes calls: it waits, says so, and goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from clusterfn.calls import submit
from clusterfn.config.spec import Host
from clusterfn.hosts.connection import HostConnection, TreeFile
from clusterfn.hosts.rpc.frames import Header
from tests.fakes.transport import FakeTransport, agent

HOST = Host("lab8", "lab8", "bare", "clusterfn.yml:3")
JOB = bytes(16 << 10)


def answers(request: Header, body: bytes) -> Iterator[tuple[Header, bytes]]:
    if request["do"] in ("put", "have"):
        yield {"end": True, "ok": True}, b""


@pytest.fixture
def connection() -> Iterator[HostConnection]:
    made = HostConnection(HOST, FakeTransport(agent(answers)))
    yield made
    made.close()


@pytest.fixture
def stuck(connection: HostConnection) -> Iterator[threading.Event]:
    """What lets the stream take bytes again."""
    flows, stream = threading.Event(), connection.line.opened.stream
    write = stream.write

    def slow(data: bytes) -> None:
        flows.wait(150)
        write(data)

    stream.write = slow  # type: ignore[method-assign]
    yield flows
    flows.set()


def put(connection: HostConnection, number: int, data: bytes = JOB) -> Any:
    return connection.put_tree(f"/jobs/{number}", [TreeFile("payload.pkl", data)])


def test_what_is_queued_for_a_host_that_takes_nothing_is_bounded(
    connection: HostConnection, stuck: threading.Event
) -> None:
    count = 0
    while connection.has_room(0.0):
        put(connection, count)
        count += 1
        assert count * len(JOB) < 10 << 20
    assert count * len(JOB) > 4 << 20

    stuck.set()

    assert connection.has_room(150)


def test_a_large_file_on_its_way_leaves_room_for_small_calls(
    connection: HostConnection, stuck: threading.Event
) -> None:
    put(connection, 1, bytes(20 << 20))

    assert connection.has_room(0.0)


def test_a_program_that_waits_says_so_and_goes_on(
    connection: HostConnection, stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "REPORT_AFTER_S", 0.2)
    said: list[str] = []
    monkeypatch.setattr(submit.console, "tell", lambda line: (said.append(line), stuck.set()))
    for number in range(600):
        put(connection, number)
    session: Any = type("Session", (), {"connection": connection, "host": HOST})

    submit.await_room(session)

    assert said == ["waiting to send more calls to lab8: it takes them slowly"]


def test_a_closed_connection_keeps_nobody_waiting(connection: HostConnection, stuck: threading.Event) -> None:
    for number in range(600):
        put(connection, number)
    assert not connection.has_room(0.0)
    threading.Timer(0.2, connection.close).start()

    assert connection.has_room(150)
