"""Local sockets whose bytes travel as frames, and the folder of those of kernels and sessions."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from clusterfn.bridge.kernel.carried import (
    READ,
    SOCKET,
    CarriedConnections,
    SocketWatcher,
    make_private_folder,
    receive,
)
from clusterfn.bridge.kernel.stream import DATA, FrameSplitter, FrameStream
from tests.waiting import WAIT_S

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
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(theirs / SOCKET))
    os.chown(theirs, BOB, BOB)

    made = [Path(make_private_folder()) for _ in range(2)]

    assert theirs.exists() and len({theirs, *made}) == 3
    assert all(path.stat().st_mode & 0o777 == 0o700 and path.stat().st_uid == os.getuid() for path in made)
    for path in (theirs, *made):
        shutil.rmtree(path)
