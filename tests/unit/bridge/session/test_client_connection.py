"""What a client of a session is sent: ends that may wait go with the next frame, and no frame piles up."""

from __future__ import annotations

import importlib
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clusterfn.bridge import session
from clusterfn.bridge.agent.frames import Inbox


def test_what_may_wait_is_sent_with_the_next_frame_or_soon_and_never_piles_up():
    door, carried = (importlib.import_module(name, session.__name__) for name in (".door", "..kernel.carried"))
    ours, its = socket.socketpair()
    its.setblocking(False)
    inbox = Inbox()

    def come() -> list[int]:
        try:
            return [header["n"] for header, _ in inbox.feed(its.recv(1 << 20))]
        except BlockingIOError:
            return []

    with ours, its:
        ours.setblocking(False)
        client = door.ClientConnection(ours, carried.SocketWatcher(), lambda *_: None)
        client.has_taken(1)
        client.say("end", may_wait=True, n=1)
        assert not come()
        assert 0 < client.due - time.monotonic() <= door.GATHER_S
        client.say("stdout", n=2)
        assert come() == [1, 2]
        assert not client.due, "nothing is left to say"

        client.say("end", may_wait=True, n=3)
        due = client.due
        client.say("end", may_wait=True, n=3)
        assert client.due == due, "the first waits no longer for the second"
        client.flush()
        assert come() == [3, 3]

        client.say("end", may_wait=True, n=3)
        client.flush()
        assert come() == [3]
        client.say("end", b"x" * door.MOST_GATHERED, may_wait=True, n=4)
        assert come() == [4]


def test_a_call_that_is_taken_while_an_end_waits_is_said_with_it():
    door, carried = (importlib.import_module(name, session.__name__) for name in (".door", "..kernel.carried"))
    ours, its = socket.socketpair()
    with ours, its:
        ours.setblocking(False)
        client = door.ClientConnection(ours, carried.SocketWatcher(), lambda *_: None)
        client.has_taken(1)
        client.say("end", may_wait=True, n=1)
        client.has_taken(2)
        client.flush()
        told = [(header["what"], header["taken"]) for header, _ in Inbox().feed(its.recv(1 << 20))]

    assert told == [("end", 1), ("taken", 2)]


def test_a_value_that_is_gone_is_not_said_to_be_there(tmp_path: Path):
    door = importlib.import_module(".door", session.__name__)
    said: list[tuple[bytes, bool]] = []
    connection: Any = SimpleNamespace(
        say=lambda what, data, may_wait, n, outcome, has_value: said.append((data, has_value))
    )
    (tmp_path / "value").write_bytes(b"value")
    heard = door.Listener(connection, 1, True)

    for name, size in (("value", 5), ("gone", 5), ("value", door.SMALL_VALUE + 1), ("gone", 0)):
        heard.take("end", b"{}", str(tmp_path / name), size)

    assert said == [(b"{}value", True), (b"{}", False), (b"{}", False), (b"{}", True)]
