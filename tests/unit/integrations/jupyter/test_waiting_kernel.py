"""What a client reads, and what the kernel gets, while and after the client is answered in the kernel's place."""

from __future__ import annotations

import time
from typing import Any

import pytest
from jupyter_client.session import Session

from clusterfn.bridge.kernel.stream import DATA, IOPUB, SHELL, Frame, MessageReader
from clusterfn.hosts.spoken_wait import REASON_AFTER_S
from clusterfn.integrations.jupyter.kernel_proxy import WaitingKernel
from tests.unit.integrations.jupyter.zeromq import GREETING, message, socket_ready
from tests.waiting import replace_here

SESSION = Session(key=b"key")
CHANNELS = {1: SHELL, 2: IOPUB}


def request(kind: str, session: Session = SESSION, **content: Any) -> bytes:
    return message(session.serialize(session.msg(kind, content=content)))


class Waits:
    """A client whose kernel is not there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        replace_here(monkeypatch, time, "monotonic", lambda: self.now)
        self.client = {number: b"" for number in CHANNELS}
        self.sent = {number: b"" for number in CHANNELS}
        self.kernel = WaitingKernel(("key", "hmac-sha256"), self.deliver, self.to_kernel)
        self.connections = {number: self.kernel.accept(number, channel) for number, channel in CHANNELS.items()}
        for number in CHANNELS:
            self.send(number, GREETING[:10])  # as libzmq begins

    def send(self, number: int, data: bytes) -> None:
        """Send as the client does."""
        passing = self.connections[number]
        assert passing is not None
        self.to_kernel(number, passing(data))

    def to_kernel(self, number: int, data: bytes) -> None:
        self.sent[number] += data

    def deliver(self, number: int, data: bytes) -> None:
        self.client[number] += data

    def begin(self) -> None:
        self.now += REASON_AFTER_S
        self.kernel.look()
        for number, kind in ((1, b"DEALER"), (2, b"SUB")):
            self.send(number, GREETING[10:])
            self.send(number, socket_ready(kind))
        self.send(2, message([b"\x01"]))  # it subscribes to all

    def read(self, number: int) -> list[Any]:
        found: list[list[bytes]] = []
        MessageReader(found.append).passed(self.client[number])
        return [Session(key=b"key").deserialize(each[each.index(b"<IDS|MSG>") + 1 :]) for each in found]


def test_a_client_is_answered_after_some_seconds_and_each_cell_shows_the_last_text(monkeypatch):
    waits = Waits(monkeypatch)
    assert set(waits.client.values()) == {b""}
    waits.begin()

    waits.send(1, request("kernel_info_request"))
    waits.send(1, request("execute_request", code="1", silent=False))
    waits.send(1, request("execute_request", code="2", silent=True))
    waits.kernel.show("locking environment.yml")
    waits.kernel.end()
    waits.send(1, request("kernel_info_request"))

    assert [each["msg_type"] for each in waits.read(1)] == ["kernel_info_reply"]
    published = waits.read(2)
    states = [each["content"]["execution_state"] for each in published if each["msg_type"] == "status"]
    assert states == ["busy", "idle", "busy", "busy"]
    texts = [each["content"]["data"]["text/plain"] for each in published if "data" in each["content"]]
    assert texts == ["clusterfn: the kernel is being started", "clusterfn: locking environment.yml"]
    assert [each["msg_type"] for each in published][-1] == "clear_output", "the cell is to show the kernel's output"
    assert len({each["content"]["transient"]["display_id"] for each in published if "data" in each["content"]}) == 1


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_the_kernel_gets_all_that_the_client_has_sent_and_only_its_handshake_is_left_out(monkeypatch, size):
    waits = Waits(monkeypatch)
    waits.begin()
    asked = request("execute_request", code="1")
    waits.send(1, asked)
    assert waits.sent[1] == GREETING, "libzmq stalls if more comes before it has greeted"
    waits.kernel.end()

    said, passed = GREETING + socket_ready(b"ROUTER") + b"what it answers", b""
    for start in range(0, len(said), size):
        passed += waits.kernel.without_handshake(Frame(DATA, 1, 1, said[start : start + size])).body
    waits.send(1, b"more")

    assert passed == b"what it answers"
    assert waits.sent[1] == GREETING + socket_ready(b"DEALER") + asked + b"more"


def test_a_request_that_is_not_signed_with_the_key_gets_no_answer(monkeypatch):
    waits = Waits(monkeypatch)
    waits.begin()
    before = dict(waits.client)

    waits.send(1, request("kernel_info_request", Session(key=b"other")))
    waits.send(1, message([b"<IDS|MSG>", b""]))

    assert waits.client == before
