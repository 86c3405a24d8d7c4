"""Kernels: local sockets whose bytes travel as frames, which arrive once and in order, and how long one is idle."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jupyter_client.session import Session

from clusterfn.bridge.kernel.carried import (
    READ,
    SOCKET,
    CarriedConnections,
    SocketWatcher,
    make_private_folder,
    receive,
)
from clusterfn.bridge.kernel.process import KernelActivity
from clusterfn.bridge.kernel.stream import (
    ACK,
    DATA,
    HELLO,
    Frame,
    FrameSplitter,
    FrameStream,
    MessageReader,
    StreamDamaged,
    facts_of,
    pack,
    pack_hello,
    request_of,
)
from tests.unit.integrations.jupyter.zeromq import GREETING, message, socket_ready
from tests.waiting import WAIT_S


class End:
    """One end, with the frames that have arrived at it."""

    def __init__(self) -> None:
        self.stream = FrameStream()
        self.splitter = FrameSplitter()
        self.arrived: list[bytes] = []

    def give(self, data: bytes) -> None:
        self.arrived += [frame.body for frame in self.stream.take(self.splitter.feed(data))]


def connect(one: End, other: End) -> None:
    """As after a hello of each."""
    for end in (one, other):
        end.stream.disconnect()
        end.splitter = FrameSplitter()
    one.stream.resume(other.stream.received)
    other.stream.resume(one.stream.received)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.booleans(), st.binary(max_size=40)),
        st.tuples(st.just("carry"), st.booleans(), st.integers(0, 200)),  # so many bytes, the rest is lost at a cut
        st.tuples(st.just("cut"), st.booleans(), st.none()),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(steps=STEPS)
def test_what_is_sent_arrives_once_and_in_order_whatever_is_cut(steps):
    ends = End(), End()
    sent: tuple[list[bytes], list[bytes]] = [], []
    wires = [b"", b""]  # what each end has written, and the other has not read
    connect(*ends)
    for what, first, value in [*steps, ("cut", True, None)]:
        side = 0 if first else 1
        if what == "send":
            ends[side].stream.send(DATA, 1, value)
            sent[side].append(value)
        elif what == "carry":
            wires[side] += ends[side].stream.next_unsent()
            ends[1 - side].give(wires[side][:value])
            wires[side] = wires[side][value:]
        else:
            connect(*ends)
            wires = [b"", b""]
    while any(end.stream.unsent() for end in ends):
        for side in (0, 1):
            ends[1 - side].give(ends[side].stream.next_unsent())

    assert (ends[1].arrived, ends[0].arrived) == sent
    assert [end.stream.kept_bytes for end in ends] == [0, 0], "all was acknowledged"


def test_frames_are_kept_until_they_are_acknowledged_once_for_each_read():
    stream = FrameStream()
    stream.resume(0)
    for body in (b"a", b"b"):
        stream.send(DATA, 1, body)
    kept = stream.kept_bytes
    stream.take([Frame(ACK, 0, 1, b"")])
    assert 0 < stream.kept_bytes < kept
    stream.next_unsent()

    assert len(stream.take([Frame(DATA, 1, 1, b"x"), Frame(DATA, 1, 2, b"y")])) == 2
    assert FrameSplitter().feed(stream.next_unsent()) == [Frame(ACK, 0, 2, b"")]


def test_a_gap_and_bytes_that_are_no_frames_are_noticed():
    with pytest.raises(StreamDamaged, match="frame 2 came after frame 0"):
        FrameStream().take([Frame(DATA, 1, 2, b"")])
    with pytest.raises(StreamDamaged, match="a second hello"):
        FrameStream().take([Frame(HELLO, 0, 0, b"{}")])
    with pytest.raises(StreamDamaged, match="a frame of kind 76"):
        FrameSplitter().feed(b"Last login: Sat Nov 21 on pts/0\r\n")
    with pytest.raises(StreamDamaged, match="has 1 frames, of 1 to 0"):
        FrameStream().resume(1)


def test_frames_come_out_as_they_went_in_however_they_are_cut():
    frames = [Frame(DATA, 2**32 - 1, 2**64 - 1, bytes(range(256))), Frame(ACK, 0, 7, b"")]
    data, splitter = b"".join(map(pack, frames)), FrameSplitter()

    assert [frame for byte in data for frame in splitter.feed(bytes([byte]))] == frames
    assert facts_of(FrameSplitter().feed(pack_hello({"received": 3}))[0]) == {"received": 3}
    with pytest.raises(StreamDamaged):
        facts_of(Frame(HELLO, 0, 0, json.dumps([1]).encode()))


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


def test_a_kernel_is_idle_while_no_cell_runs_whatever_clients_ask():
    kernel, session = KernelActivity(), Session(key=b"key")
    cell, completion, info = (session.msg(f"{kind}_request") for kind in ("execute", "complete", "kernel_info"))

    def publish(request: Any, state: str) -> None:
        made = session.msg("status", content={"execution_state": state}, parent=request)
        kernel.note([b"kernel.7.status", *session.serialize(made)])

    kernel.note([])
    assert kernel.idle_s() > 0
    publish(cell, "busy")
    assert not kernel.idle_s()
    publish(completion, "busy")
    publish(cell, "idle")
    publish(info, "busy")
    assert not kernel.idle_s()
    publish(completion, "idle")
    assert kernel.idle_s() > 0, "kernel_info_request counts"


BOB = 64_001  # nobody has this number


@pytest.fixture
def watcher():
    made = SocketWatcher()
    yield made
    made.close()


@pytest.fixture
def pair():
    near, far = socket.socketpair()
    far.settimeout(WAIT_S)
    with near, far:
        yield near, far


def frames_of(stream: FrameStream) -> list[tuple[int, int, bytes]]:
    return [(frame.kind, frame.connection, frame.body) for frame in FrameSplitter().feed(stream.next_unsent())]


def test_nothing_is_read_while_too_much_is_not_acknowledged(watcher, pair):
    near, far = pair
    stream = FrameStream()
    stream.resume(0)
    carried = CarriedConnections(watcher, stream, 10)
    carried.add(1, near)
    for text in (b"more than ten bytes", b"later"):
        far.sendall(text)
        watcher.wait(0.05)
        carried.pause_if_full()
    assert frames_of(stream) == [(DATA, 1, b"more than ten bytes")]

    stream.take(FrameSplitter().feed(b"\x02" + bytes(4) + (1).to_bytes(8, "big") + bytes(4)))
    carried.pause_if_full()
    watcher.wait(WAIT_S)
    assert frames_of(stream) == [(DATA, 1, b"later")]
    carried.close()


def test_a_socket_that_another_handler_has_closed_is_left_alone(watcher):
    one, other = socket.socketpair()
    seen = []

    def close_both(_: int) -> None:
        seen.append(1)
        for each in (one, other):
            watcher.forget(each)
            each.close()

    for end in (one, other):
        end.send(b"x")
        watcher.watch(end, READ, close_both)
    watcher.wait(WAIT_S)

    assert seen == [1]
    watcher.forget(one)


def test_a_socket_with_nothing_yet_is_not_at_its_end():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        assert receive(ours) is None
        theirs.sendall(b"hello")
        assert receive(ours) == b"hello"
        theirs.close()
        assert receive(ours) == b""


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_left_alone_and_ones_own_has_a_name_that_nobody_can_guess():
    theirs = Path(tempfile.mkdtemp(prefix="clusterfn-kernel-", dir="/tmp"))
    os.chown(theirs, BOB, BOB)  # before a dead socket is there: other programs of this account remove such folders
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(theirs / SOCKET))

    made = [Path(make_private_folder()) for _ in range(2)]

    assert theirs.exists() and len({theirs, *made}) == 3
    assert all(path.stat().st_mode & 0o777 == 0o700 and path.stat().st_uid == os.getuid() for path in made)
    for path in (theirs, *made):
        shutil.rmtree(path)
