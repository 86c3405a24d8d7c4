"""Local sockets whose bytes travel as frames."""

from __future__ import annotations

import socket

import pytest

from clusterfn.bridge.kernel.carried import READ, CarriedConnections, SocketWatcher, receive
from clusterfn.bridge.kernel.stream import CLOSE, DATA, Frame, FrameSplitter, FrameStream
from tests.waiting import WAIT_S


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


def test_bytes_go_both_ways_and_what_came_before_a_close_is_delivered(watcher, pair):
    near, far = pair
    stream = FrameStream()
    stream.resume(0)
    carried = CarriedConnections(watcher, stream, 1 << 20)
    connection = carried.add(7, None)
    carried.take(Frame(DATA, 7, 1, b"early"))
    carried.attach(connection, near)
    far.sendall(b"answer")
    for _ in range(2):
        watcher.wait(1)
    carried.take(Frame(DATA, 7, 2, b" late" * 100_000))
    carried.take(Frame(CLOSE, 7, 3, b""))

    heard = b""
    while len(heard) < 500_005:
        heard += far.recv(1 << 20)
        watcher.wait(0.01)
    assert heard == b"early" + b" late" * 100_000
    assert (far.recv(1), carried.undelivered, bool(carried)) == (b"", 0, False)
    assert frames_of(stream) == [(DATA, 7, b"answer")]


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
    watcher.wait(1)
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
    watcher.wait(1)

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
