"""What the process that a client takes for its kernel makes of what the holder says."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fcntl", reason="hosts are no Windows machines")

from clusterfn.bridge.kernel.stream import HELLO, SAY, Frame, pack
from clusterfn.integrations.jupyter.jupyter_files import ConnectionFile
from clusterfn.integrations.jupyter.kernel_proxy import kernel_proxy

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
