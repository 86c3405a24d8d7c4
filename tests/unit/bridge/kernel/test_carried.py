"""Local sockets whose bytes travel as frames."""

from __future__ import annotations

import socket

import pytest

from clusterfn.bridge.kernel.carried import READ, CarriedConnections, SocketWatcher, receive
from clusterfn.bridge.kernel.stream import DATA, FrameSplitter, FrameStream
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
