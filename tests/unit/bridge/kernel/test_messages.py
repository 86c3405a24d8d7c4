"""Messages are read as their bytes pass; what is no request of Jupyter has no type."""

from __future__ import annotations

import pytest
from jupyter_client.session import Session

from clusterfn.bridge.kernel.stream import MessageReader, request_of
from tests.unit.integrations.jupyter.zeromq import GREETING, message, socket_ready

SESSION = Session(key=b"key")
SMALL, LARGE = (SESSION.serialize(SESSION.msg("execute_request", content={"code": "x" * size})) for size in (3, 70_000))
BINARY = [*SMALL, bytes(2 << 20)]


@pytest.mark.parametrize("piece", [1000, 4096, 1 << 20])
def test_each_message_is_read_once_it_is_whole_and_its_bytes_pass_as_they_come(piece):
    read: list[list[bytes]] = []
    reader = MessageReader(read.append)
    data = GREETING + socket_ready(b"DEALER") + message(SMALL) + message([b"\x01"]) + message(LARGE) + message(BINARY)

    for start in range(0, len(data), piece):
        assert reader.passed(data[start : start + piece]) == data[start : start + piece]

    assert read == [SMALL, [b"\x01"], LARGE, [*SMALL, b""]], "a long part is a binary buffer"


def test_what_is_no_request_has_no_type():
    whole = [b"<IDS|MSG>", b"", b'{"msg_type": "a"}', b"{}", b"{}", b"{}"]

    assert request_of(whole) == ("a", {})
    assert [request_of(whole[:length])[0] for length in range(6)] == [""] * 6
    assert request_of([b"\x01kernel.1"]) == ("", {})
    assert request_of([*whole[:5], b"{"]) == ("", {})
