"""What the process that a client takes for its kernel makes of what the holder says."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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


@pytest.mark.parametrize(
    "body",
    [
        {"ended": "died"},
        {"ended": "died", "how": "x", "lines": 3},
        {"ended": "idle"},
        {"ended": "idle", "idle_s": "x"},
        b"{",
    ],
)
def test_a_last_word_that_lacks_something_ends_it_with_a_sentence(body: object) -> None:
    code, (sentence,) = hear(say(HELLO, 0, WELCOME), say(SAY, 1, body))

    assert code == 1 and sentence.startswith("the connection to the kernel is damaged: ")


class FarEnd:
    """Answers in capitals; its connection is lost on the first bytes of a client, which it has received."""

    def __init__(self, post: Callable[[str, Any], None]) -> None:
        self.post, self.stream, self.words, self.losses = post, FrameStream(), [], ["a cable"]  # type: ignore[var-annotated]

    def open(self, hello: bytes) -> None:
        (greeting,) = FrameSplitter().feed(hello)
        self.splitter = FrameSplitter()
        self.post("data", say(HELLO, 0, {"received": self.stream.received}))
        self.stream.resume(facts_of(greeting)["received"])
        self.answer()

    def write(self, data: bytes) -> None:
        new = self.stream.take(self.splitter.feed(data))
        self.words += [facts_of(frame) for frame in new if frame.kind == SAY]
        for frame in new:
            if frame.kind == DATA:
                self.stream.send(DATA, frame.connection, frame.body.upper())
        if self.losses and any(frame.kind == DATA for frame in new):
            self.stream.disconnect()
            self.post("lost", self.losses.pop())
        self.answer()

    def answer(self) -> None:
        while self.stream.unsent():
            self.post("data", self.stream.next_unsent())


def test_a_client_is_answered_once_through_a_connection_that_was_lost_meanwhile() -> None:
    said: list[str] = []
    job = SimpleNamespace(adopts="", job=Future())
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        near = NearEnd("port 6006", {ONLY: listener}, lambda: job, said.append)  # type: ignore[arg-type, return-value]
        far = FarEnd(near.events.post)
        near.on_sigint, near.open_link = "", lambda *_: far  # type: ignore[assignment, return-value]

        def ask() -> bytes:
            with socket.create_connection(listener.getsockname(), WAIT_S) as client:
                client.sendall(b"question")
                try:
                    return client.recv(99)
                finally:
                    near.events.post("terminate")

        answer = pool.submit(ask)
        assert (near.run(), answer.result(), far.words) == (0, b"QUESTION", [{"do": "end"}])
    near.events.close()
    lost, back = said
    assert lost == "the connection to port 6006 is lost, and its job keeps running: a cable"
    assert back == "the connection to port 6006 is back"
