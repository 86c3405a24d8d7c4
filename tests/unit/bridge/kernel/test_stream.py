"""The stream of a kernel: frames arrive once and in order, messages are read as they pass, and how long it is idle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jupyter_client.session import Session

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
