"""How requests go out: one at once, and those of a burst together."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.agent.frames import Inbox
from clusterfn.hosts.rpc import link_stream
from tests.waiting import until


class Line:
    """A stream that keeps what is written to it, and a sender that writes there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changed = threading.Condition()
        self.over: object = None
        self.connected = True
        self.opened = SimpleNamespace(stream=self)
        self.pulse = SimpleNamespace(send=lambda size: None)
        self.writes: list[bytes] = []
        self.pauses = 0
        self.may_go_on = threading.Event()
        clock = SimpleNamespace(monotonic=self.monotonic, sleep=self.pause)
        monkeypatch.setattr(link_stream, "time", clock)
        self.sender = link_stream.RequestSender(self, lambda number: True, lambda *_: None)  # type: ignore[arg-type]
        self.thread = threading.Thread(target=self.sender.run)
        self.thread.start()

    # links of other tests may still send in this process: for them time goes on as it does

    def monotonic(self) -> float:
        return 0.0 if threading.current_thread() is self.thread else time.monotonic()

    def pause(self, seconds: float) -> None:
        if threading.current_thread() is not self.thread:
            time.sleep(seconds)
            return
        self.pauses += 1
        assert self.may_go_on.wait(60)

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def say(self, number: int) -> None:
        with self.changed:
            self.sender.say({"id": number})

    def heard(self) -> list[int]:
        return [header["id"] for header, _ in Inbox().feed(b"".join(self.writes))]

    def close(self) -> None:
        self.may_go_on.set()
        with self.changed:
            self.over = "closed"
            self.changed.notify_all()
        self.thread.join(60)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Line(monkeypatch)
    yield made
    made.close()
    assert not made.thread.is_alive()


def test_requests_that_come_one_by_one_wait_for_nothing_and_those_of_a_burst_go_together(line: Line):
    for number in range(16):
        line.say(number)
        until(lambda: len(line.writes) > number)
    assert not line.pauses

    for number in range(16, 40):
        line.say(number)
    until(lambda: line.pauses == 1)
    line.may_go_on.set()
    until(lambda: len(line.heard()) == 40)

    assert line.heard() == [*range(40)]
    assert len(line.writes) < 16 + 24


def test_a_link_that_is_closed_while_a_burst_waits_writes_no_more(line: Line):
    for number in range(16):
        line.say(number)
        until(lambda: len(line.writes) > number)
    line.say(16)
    until(lambda: line.pauses == 1)
    line.close()
    assert line.heard() == [*range(16)]


def test_of_many_failures_the_last_ones_are_known_to_later_requests() -> None:
    requests = link_stream.PendingRequests()
    for number in range(1, 20_001):
        requests.remove(number, {"kind": "missing", "message": str(number)})

    def failed(after: int) -> Any:
        return requests.failed_before(SimpleNamespace(after=[after]))  # type: ignore[arg-type]

    assert failed(1) is None
    assert failed(20_000)["message"] == "20000"
