"""Output beyond the limit is dropped in whole messages, with a note; what is no request of Jupyter has no type."""

from __future__ import annotations

from typing import Any

import pytest
from jupyter_client.session import Session

from clusterfn.bridge.kernel.zmtp import GREETING, MessageReader, OutputLimit, message, request_of, socket_ready

KEY = "key"
SESSION = Session(key=KEY.encode())
CELL = SESSION.msg("execute_request")


def published(topic: str, kind: str, **content: Any) -> bytes:
    made = SESSION.msg(kind, content=content, parent=CELL)
    return message([topic.encode(), *SESSION.serialize(made)])


def read(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Topic and message of each, as a client reads them: with signatures that are right."""
    return [
        (parts[0].decode(), Session(key=KEY.encode()).deserialize(parts[2:]))
        for _, parts in MessageReader().feed(data)
        if parts
    ]


START = GREETING + socket_ready(b"SUB")
OUTPUT = [published("stream.stdout", "stream", name="stdout", text="x" * size) for size in (3, 100, 1000)]
DISPLAY = published("display_data", "display_data", data={"image/png": "y" * 70_000})
BUSY, IDLE = (published("kernel.7.status", "status", execution_state=state) for state in ("busy", "idle"))
RESULT = published("kernel.7.execute_result", "execute_result", data={"text/plain": "42"})


@pytest.mark.parametrize("piece", [1, 7, 4096, 1 << 20])
def test_what_a_client_relies_on_is_kept_and_a_note_says_what_is_not(piece):
    noted: list[list[bytes]] = []
    limit, passed = OutputLimit(KEY, "hmac-sha256", noted.append), b""
    for data, is_full in (
        (START + BUSY + OUTPUT[0], False), (OUTPUT[1] + DISPLAY + RESULT + OUTPUT[2], True), (IDLE + OUTPUT[0], False)
    ):  # fmt: skip
        for start in range(0, len(data), piece):
            passed += limit.passed(data[start : start + piece], is_full)

    assert passed.startswith(START)
    assert len([parts for parts in noted if parts]) == 8, "what is dropped is noted too"
    found = read(passed)
    assert [topic for topic, _ in found] == [
        "kernel.7.status", "stream.stdout", "kernel.7.execute_result", "stream.stderr", "kernel.7.status",
        "stream.stdout",
    ]  # fmt: skip
    note = found[3][1]
    assert note["parent_header"]["msg_id"] == CELL["header"]["msg_id"], "it belongs to the cell"
    gone = sum(map(len, (OUTPUT[1], DISPLAY, OUTPUT[2])))
    assert f"[clusterfn: {gone} bytes of output were not kept for the client]" in note["content"]["text"]


def test_a_handshake_is_passed_on_as_it_comes_and_a_message_is_judged_once_it_is_whole():
    limit = OutputLimit(KEY, "hmac-sha256", lambda _: None)
    assert limit.passed(START[:10], False) == START[:10], "each side waits for the first bytes of the other"

    passed = limit.passed(START[10:] + DISPLAY[:5000], False) + limit.passed(DISPLAY[5000:] + OUTPUT[0] + IDLE, True)

    assert [topic for topic, _ in read(START[:10] + passed)] == ["kernel.7.status"]


def test_what_is_no_request_has_no_type():
    whole = [b"<IDS|MSG>", b"", b'{"msg_type": "a"}', b"{}", b"{}", b"{}"]

    assert request_of(whole) == ("a", {})
    assert [request_of(whole[:length])[0] for length in range(6)] == [""] * 6
    assert request_of([b"\x01kernel.1"]) == ("", {})
    assert request_of([*whole[:5], b"{"]) == ("", {})
