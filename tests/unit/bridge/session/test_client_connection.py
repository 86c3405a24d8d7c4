"""What a client of a session is sent: ends that may wait go with the next frame, and no frame piles up."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.bridge.session.serving import headers_of, part

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
