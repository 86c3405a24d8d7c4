"""Parts of the agent and of its boot that need no host."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.agent import frames
from clusterfn.bridge.agent.facts import HelloHandler
from clusterfn.bridge.agent.files import glob_pattern
from clusterfn.bridge.agent.frames import Inbox, Outbox, pack
from clusterfn.bridge.agent.handler import Failure, expand
from clusterfn.hosts.rpc.boot import preface


@pytest.mark.parametrize("step", [1, 11, 4096, 4097, 65_536, 1 << 20])
def test_frames_come_out_of_any_pieces_whole_though_the_memory_of_a_piece_is_used_again(step: int) -> None:
    large, long = os.urandom(100_000 if step > 11 else 5000), "\udcff\u00fc" * 750
    chunks = [{"id": 2, "do": "chunk", "last": False}, {"id": 3, "do": "chunk", "last": True}]
    whole = [({"id": 1, "long": long}, b"whole"), *((each, large) for each in chunks), ({"id": 4}, b""),
             ({"id": 5}, large)]  # fmt: skip
    stream = b"".join(pack(*frame) for frame in whole)
    inbox, piece, came = Inbox(), bytearray(step), []

    for at in range(0, len(stream), step):
        size = len(stream[at : at + step])
        piece[:size] = stream[at : at + step]
        came += inbox.feed(memoryview(piece)[:size])
        piece[:size] = bytes(size)

    assert came == whole


def test_a_frame_is_two_lengths_a_header_and_a_body() -> None:
    assert pack({"id": 1}, b"xy") == struct.pack("!IQ", 9, 2) + b'{"id": 1}xy'


class Sender:
    """A transfer that never ends."""

    def __init__(self, name: bytes, urgent: bool) -> None:
        self.name, self._urgent, self.queued, self.ended = name, urgent, False, False

    def is_urgent(self) -> bool:
        return self._urgent

    def frame(self) -> bytes:
        return self.name

    def safely(self, action):  # type: ignore[no-untyped-def]
        return action()


def order(out: Outbox, count: int) -> bytes:
    frames = []
    for _ in range(count):
        out.next_frame(math.inf)
        frames.append(bytes(out.now))
    return b"".join(frames)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "TOGETHER", 1)


@pytest.mark.usefixtures("one_by_one")
def test_transfers_take_turns() -> None:
    out = Outbox(-1)
    for name in (b"a", b"b", b"c"):
        out.offer(Sender(name, urgent=False))

    assert order(out, 6) == b"abcabc"


@pytest.mark.usefixtures("one_by_one")
def test_answers_go_first_then_lines_but_bodies_are_not_starved() -> None:
    out = Outbox(-1)
    out.offer(Sender(b"b", urgent=False))
    out.offer(Sender(b"l", urgent=True))
    out.answer({"id": 1})

    assert order(out, 11)[-10:] == b"llllllllbl"


def test_small_frames_leave_together_up_to_a_piece_of_a_file() -> None:
    """The memory of that is used again for the next one."""
    out, memory = Outbox(-1), bytearray(b"file")

    class Piece(Sender):
        def frame(self) -> Any:
            memory[:] = bytes(memory[1:] + memory[:1])
            return memoryview(memory)

    out.offer(Piece(b"", urgent=False))
    for number in (1, 2):
        out.answer({"id": number})

    assert out.next_frame(math.inf)
    assert bytes(out.now) == pack({"id": 1}) + pack({"id": 2}) + b"ilef"
    assert out.next_frame(math.inf) and bytes(out.now) == b"lefi"


def test_what_is_sent_no_longer_counts_as_unsent() -> None:
    out = Outbox(-1)
    out.answer({"id": 1}, b"x" * 1000)
    out.offer(Sender(b"b" * 5000, urgent=False))

    order(out, 3)

    assert out.size == 0


@pytest.mark.parametrize(
    ("glob", "name", "found"),
    [
        ("*.pt", "a.pt", True),
        ("*.pt", "d/a.pt", False),
        ("**/*.pt", "d/e/a.pt", True),
        ("d/**", "d/e/a.pt", True),
        ("[!a].pt", "b.pt", True),
        ("[!a].pt", "a.pt", False),
        ("a+(b).pt", "a+(b).pt", True),
        ("[", "[", True),
    ],
)
def test_globs(glob: str, name: str, found: bool) -> None:
    assert bool(glob_pattern(glob).match(name)) is found


@pytest.mark.parametrize("path", ["x", "", "a/b", "/a\0b"])
def test_a_path_that_is_not_absolute_is_refused(path: str) -> None:
    with pytest.raises(Failure, match="not an absolute path"):
        expand(path)


def test_the_marker_is_not_in_what_is_sent() -> None:
    marker = "0123456789abcdef0123456789abcdef"

    assert marker.encode() not in preface("auto", marker)
    assert preface("auto", marker).lstrip(b"\n").count(b"\n") == 3


def test_a_root_that_another_user_made_between_the_look_and_the_making_is_refused(tmp_path: Path, monkeypatch) -> None:
    root = tmp_path / "root"

    def is_too_late(path: str, **_: object) -> None:
        root.mkdir()
        root.chmod(0o777)

    monkeypatch.setattr(os, "makedirs", is_too_late)

    with pytest.raises(Failure) as caught:
        HelloHandler(SimpleNamespace(), {"id": 1, "root": str(root), "have": []}, b"").start()
    assert (caught.value.data["kind"], caught.value.data["path"]) == ("refused", str(root))
