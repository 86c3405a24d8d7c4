"""What paramiko receives reaches its reader whole and in order, with few wakeups."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import paramiko
import pytest
from paramiko.buffered_pipe import PipeTimeout
from paramiko.common import cMSG_CHANNEL_WINDOW_ADJUST

from clusterfn.hosts.rpc.frames import FrameReader, pack
from clusterfn.hosts.transports.paramiko import ParamikoStream
from clusterfn.hosts.transports.paramiko_packets import QuickSocket, ReceivedPieces
from tests.waiting import WAIT_S, until


@pytest.fixture
def pair() -> Iterator[tuple[QuickSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield QuickSocket(ours), theirs


def reading(received: ReceivedPieces) -> tuple[threading.Thread, list[bytes]]:
    """Start a thread that reads once; it and what it has read."""
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.append(received.read(100)), daemon=True)
    thread.start()
    return thread, read


def test_a_read_returns_what_is_there_and_never_more_than_it_asks_for() -> None:
    received = ReceivedPieces()
    for piece in (b"abc", b"defgh", b"i"):
        received.feed(piece)

    assert (len(received), received.read_ready()) == (9, True)
    assert [received.read(4), received.read(1), received.read(100)] == [b"abcd", b"e", b"fghi"]
    assert (len(received), received.read_ready()) == (0, False)


@pytest.mark.parametrize("limit_s", [0.0, 0.01])
def test_a_read_waits_no_longer_than_its_limit(limit_s: float) -> None:
    with pytest.raises(PipeTimeout):
        ReceivedPieces().read(1, limit_s)


def test_an_empty_packet_is_no_end_and_small_ones_are_put_together() -> None:
    received = ReceivedPieces()
    received.feed(b"")
    assert not received.read_ready()

    for _ in range(10_000):
        received.feed(b"ab")

    assert len(received) == 20_000
    assert b"".join(iter(lambda: received.read(3000, 0) if len(received) else b"", b"")) == b"ab" * 10_000


def test_all_that_came_can_be_taken_at_once() -> None:
    received = ReceivedPieces()
    received.feed(b"abc")
    received.feed(b"d")

    assert [received.empty(), received.empty(), len(received)] == [b"abcd", b"", 0]


def test_packets_that_came_together_wake_the_reader_once_before_the_socket_waits(
    pair: tuple[QuickSocket, socket.socket],
) -> None:
    sock, there = pair
    received = ReceivedPieces()
    received.wake_late(sock)
    thread, read = reading(received)
    there.sendall(b"abcdef")

    for _ in range(3):
        received.feed(sock.recv(2))
        thread.join(0.05)
    assert read == [], "the socket has given all, but not been asked for more"
    there.sendall(b"g")
    assert sock.recv(2) == b"g"
    thread.join(WAIT_S)

    assert read == [b"abcdef"]


def test_a_single_packet_wakes_the_readers_of_all_channels_of_a_socket(pair: tuple[QuickSocket, socket.socket]) -> None:
    sock, there = pair
    channels = [ReceivedPieces(), ReceivedPieces()]
    for each in channels:
        each.wake_late(sock)
    readers = [reading(each) for each in channels]

    for each, data in zip(channels, (b"one", b"two")):
        each.feed(data)
    there.sendall(b"x")
    sock.recv(1)
    for thread, _ in readers:
        thread.join(WAIT_S)

    assert [read for _, read in readers] == [[b"one"], [b"two"]]


class Wire:
    """What a channel of paramiko needs of its transport; sending calls `sends`."""

    active = True

    def __init__(self) -> None:
        self.widened = 0
        self.sends: Callable[[], object] = lambda: None

    def get_log_channel(self) -> str:
        return "clusterfn.ssh"

    def _send_user_message(self, message: paramiko.Message) -> None:
        self.sends()
        if message.asbytes()[:1] == cMSG_CHANNEL_WINDOW_ADJUST:
            self.widened += struct.unpack(">xII", message.asbytes())[1]

    def _unlink_channel(self, number: int) -> None:
        pass

    def _sanitize_packet_size(self, size: int) -> int:
        return size


PACKET, WINDOW = 32_768, 2**20


@pytest.fixture
def opened() -> tuple[paramiko.Channel, Wire, ParamikoStream]:
    """A channel whose packets a test feeds."""
    channel, wire = paramiko.Channel(1), Wire()
    channel._set_transport(wire)
    channel._set_window(WINDOW, PACKET)
    channel._set_remote_channel(1, WINDOW, PACKET)
    channel.in_buffer = ReceivedPieces()
    return channel, wire, ParamikoStream(channel, [])


def feed(channel: paramiko.Channel, data: bytes) -> None:
    for at in range(0, len(data), PACKET):
        channel.in_buffer.feed(data[at : at + PACKET])


def in_thread(action: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    returned: list[Any] = []
    thread = threading.Thread(target=lambda: returned.append(action()), daemon=True)
    thread.start()
    return thread, returned


def test_what_is_handed_over_widens_the_window_and_what_follows_it_is_read(
    opened: tuple[paramiko.Channel, Wire, ParamikoStream],
) -> None:
    channel, wire, stream = opened
    taken, threads = bytearray(), set()
    sent = os.urandom(20 * WINDOW)

    def take(piece: bytes) -> bool:
        threads.add(threading.current_thread().name)
        taken.extend(piece)
        return len(taken) < len(sent)

    channel.in_buffer.feed(sent[:100])
    reader, _ = in_thread(lambda: stream.deliver(take))
    until(lambda: taken)
    for at in range(100, len(sent), PACKET):
        channel.in_buffer.feed(sent[at : at + PACKET])
        until(lambda at=at: at - wire.widened < WINDOW - PACKET)
    channel.in_buffer.feed(b"next")
    reader.join(WAIT_S)

    assert bytes(taken) == sent
    assert threads == {reader.name, threading.current_thread().name}
    assert len(sent) - wire.widened < WINDOW // 2
    assert stream.read(100) == b"next"


@pytest.mark.parametrize("end", ["while it waits", "before", "with what is left"])
def test_a_reader_that_hands_over_leaves_when_the_channel_ends(
    opened: tuple[paramiko.Channel, Wire, ParamikoStream], end: str
) -> None:
    channel, _, stream = opened
    frames, taken = FrameReader(stream.read), bytearray()
    frames.hand_over(stream.deliver, lambda _, part: not taken.extend(part))
    piece = pack({"id": 4, "size": 300_000}, bytes(262_144))
    channel.in_buffer.feed(pack({"id": 3, "end": True, "ok": True}) + piece[:5000])
    if end == "with what is left":
        feed(channel, bytes(150_000))
    if end == "before":
        channel._handle_eof(None)
        channel._handle_close(None)
    assert frames.frame() == ({"id": 3, "end": True, "ok": True}, b"")

    reader, read = in_thread(lambda: list(iter(frames.frame, None)))
    if end != "before":
        until(lambda: taken)
        channel._handle_eof(None)
        channel._handle_close(None)
    reader.join(WAIT_S)

    assert not reader.is_alive()
    assert all(header == {"id": 4, "size": 300_000} and not any(part) for header, part in read[0])


@pytest.mark.parametrize("fails", ["sending", "listening"])
@pytest.mark.parametrize("more", [200, PACKET])
def test_when_the_window_cannot_be_widened_what_was_taken_is_read_as_no_data(
    opened: tuple[paramiko.Channel, Wire, ParamikoStream], more: int, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, wire, stream = opened
    taken = bytearray()

    def fail() -> None:
        channel.in_buffer.feed(b"x" * more)
        raise EOFError

    if fails == "sending":
        wire.sends = fail
    else:
        monkeypatch.setattr(channel, "recv_stderr_ready", fail)
    reader, _ = in_thread(lambda: stream.deliver(lambda piece: not taken.extend(piece)))
    feed(channel, b"x" * 13 * PACKET)
    reader.join(WAIT_S)
    monkeypatch.undo()

    assert bytes(taken) == b"x" * (13 * PACKET + more)
    assert stream.read(100) == b""


def test_a_slow_taker_keeps_nobody_from_closing() -> None:
    received, begun, may_end = ReceivedPieces(), threading.Event(), threading.Event()
    received.give_to(lambda piece: begun.set() or may_end.wait(WAIT_S))
    feeding, _ = in_thread(lambda: received.feed(b"abc"))
    assert begun.wait(WAIT_S)

    closing, _ = in_thread(received.close)
    closing.join(WAIT_S)
    assert not closing.is_alive()
    counting, counted = in_thread(lambda: [received.has_delivered(), len(received.read(1)), received.has_delivered()])
    counting.join(0.05)
    assert not counted, "the taker still has what is given"
    may_end.set()
    feeding.join(WAIT_S)
    counting.join(WAIT_S)

    assert counted == [[True, 3, False]]


def test_two_threads_that_give_keep_the_order() -> None:
    received, taken = ReceivedPieces(), []
    slow = threading.Event()
    received.feed(b"1" * 5000)
    received.feed(b"2" * 5000)
    giving, _ = in_thread(lambda: received.give_to(lambda piece: taken.append(piece[:1]) or slow.wait(WAIT_S)))
    until(lambda: taken)

    feeding, _ = in_thread(lambda: received.feed(b"3" * 5000))
    feeding.join(WAIT_S)
    assert (feeding.is_alive(), taken) == (False, [b"1"])
    slow.set()
    giving.join(WAIT_S)

    assert taken == [b"1", b"2", b"3"]


def test_after_a_taker_that_raises_nothing_more_is_read() -> None:
    received = ReceivedPieces()
    received.feed(bytes(5000))
    received.feed(b"after it")

    with pytest.raises(ZeroDivisionError):
        received.give_to(lambda piece: 1 / 0)  # type: ignore[arg-type, return-value]

    received.feed(b"and more")  # paramiko takes some errors for a read that was in vain, and goes on
    assert (received.has_delivered(), len(received.read(9)), received.has_delivered()) == (True, 5000, False)
    assert received.read(9) == b""


def test_late_packets_are_given_once_the_socket_has_no_more(pair: tuple[QuickSocket, socket.socket]) -> None:
    sock, there = pair
    received, taken = ReceivedPieces(), []
    received.wake_late(sock)
    received.give_to(lambda piece: not taken.append(piece))
    there.sendall(b"abcd")

    received.feed(sock.recv(4) * 2000)
    assert not taken
    there.sendall(b"e")
    sock.recv(1)

    assert taken == [b"abcd" * 2000]


def test_a_socket_that_waits_too_long_says_so_and_loses_nothing(pair: tuple[QuickSocket, socket.socket]) -> None:
    sock, there = pair
    sock.settimeout(0.01)

    with pytest.raises(socket.timeout):
        sock.recv(10)
    there.sendall(b"late")

    assert sock.recv(10) == b"late"
