"""What the process that a client takes for its kernel makes of what the holder says."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fcntl", reason="hosts are no Windows machines")

from clusterfn.bridge.kernel.stream import DATA, HELLO, ONLY, SAY, Frame, FrameSplitter, FrameStream, facts_of, pack
from clusterfn.integrations.jupyter.jupyter_files import ConnectionFile
from clusterfn.integrations.jupyter.kernel_proxy import kernel_proxy
from clusterfn.integrations.jupyter.near_end import NearEnd
from tests.waiting import WAIT_S

WELCOME = {"received": 0, "fresh": True}
DIED, IDLE = {"ended": "died"}, {"ended": "idle"}


def hear(*frames: bytes) -> tuple[int, list[str]]:
    """Return the exit code of a proxy whose holder sends these, and what it says."""
    said: list[str] = []
    record = SimpleNamespace(remove=lambda: None, refuse=lambda why: None)
    found = SimpleNamespace(adopts="", job=Future())
    search: Any = SimpleNamespace(run=lambda: found, withdraw=lambda: None, record=record)

    def open_link(_: Any, post: Callable[[str, Any], None]) -> Any:
        return SimpleNamespace(
            open=lambda hello: post("data", b"".join(frames)), write=lambda data: None, close=lambda: None
        )

    proxy = kernel_proxy(ConnectionFile(Path(), "127.0.0.1", (), "key", ""), {}, search, said.append)
    # Signals belong to the tests.
    proxy.on_sigint, proxy.open_link = "", open_link
    try:
        return proxy.run(), said
    finally:
        proxy.close()


def say(kind: int, number: int, body: object) -> bytes:
    return pack(Frame(kind, 0, number, body if isinstance(body, bytes) else json.dumps(body).encode()))


def test_a_word_that_a_later_version_sends_is_ignored() -> None:
    words = ({"note": "a later version"}, {"ended": "in another way"}, {"ended": "end"})

    assert hear(say(HELLO, 0, WELCOME), *(say(SAY, at, word) for at, word in enumerate(words, 1))) == (0, [])


@pytest.mark.parametrize(
    "body", [{}, {"received": None}, {"received": "x"}, {"received": float("inf")}, [1], b"{", b"\xff"]
)
def test_a_hello_that_says_something_else_ends_it_with_a_sentence(body: object) -> None:
    code, (sentence,) = hear(say(HELLO, 0, body))

    assert code == 1 and sentence.startswith("the connection to the kernel is damaged: ")


@pytest.mark.parametrize("body", [DIED, {**DIED, "how": "x", "lines": 3}, IDLE, {**IDLE, "idle_s": "x"}, b"{"])
def test_a_last_word_that_lacks_something_ends_it_with_a_sentence(body: object) -> None:
    code, (sentence,) = hear(say(HELLO, 0, WELCOME), say(SAY, 1, body))

    assert code == 1 and sentence.startswith("the connection to the kernel is damaged: ")


def test_a_client_is_answered_once_by_a_far_end_whose_connection_is_lost_when_it_has_the_question() -> None:
    said: list[str] = []
    far, losses = FrameStream(), ["a cable"]

    def open_far_end(hello: bytes) -> None:
        near.events.post("data", say(HELLO, 0, {"received": far.received}))
        far.resume(facts_of(*FrameSplitter().feed(hello))["received"])
        write(b"")

    def write(data: bytes) -> None:
        for frame in far.take(FrameSplitter().feed(data)):
            if frame.kind == DATA:
                far.send(DATA, frame.connection, frame.body.upper())
                far.disconnect()
                near.events.post("lost", losses.pop())
        while far.unsent():
            near.events.post("data", far.next_unsent())
        if not losses and not far.kept_bytes:
            near.events.post("terminate")

    job: Any = SimpleNamespace(adopts="", job=Future())
    link = SimpleNamespace(open=open_far_end, write=write, close=lambda: None)
    with (
        socket.create_server(("127.0.0.1", 0)) as there,
        socket.create_connection(there.getsockname(), WAIT_S) as client,
    ):
        client.sendall(b"question")
        near = NearEnd("port 6006", {ONLY: there}, lambda: job, said.append)
        near.on_sigint, near.open_link = "", lambda *_: link  # type: ignore[assignment, return-value]
        assert near.run() == 0 and client.recv(99) == b"QUESTION"
        near.close()
    lost = "the connection to port 6006 is lost, and its job keeps running: a cable"
    assert said == [lost, "the connection to port 6006 is back"]
