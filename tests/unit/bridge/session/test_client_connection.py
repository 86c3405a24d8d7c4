"""What a client of a session is sent: ends that may wait go with the next frame, and no frame piles up."""

from __future__ import annotations

import importlib
import socket
import time

from clusterfn.bridge import session
from clusterfn.bridge.agent.frames import Inbox


def test_what_may_wait_is_sent_with_the_next_frame_or_soon_and_never_piles_up():
    door, carried = (importlib.import_module(name, session.__name__) for name in (".door", "..kernel.carried"))
    ours, its = socket.socketpair()
    its.setblocking(False)
    inbox = Inbox()

    def come() -> list[int]:
        try:
            return [header["n"] for header, _ in inbox.feed(its.recv(1 << 20))]
        except BlockingIOError:
            return []

    with ours, its:
        ours.setblocking(False)
        client = door.ClientConnection(ours, carried.SocketWatcher(), lambda *_: None)
        client.has_taken(1)
        client.say("end", may_wait=True, n=1)
        assert not come()
        assert 0 < client.due - time.monotonic() <= door.GATHER_S
        client.say("stdout", n=2)
        assert come() == [1, 2]
        assert not client.due, "nothing is left to say"

        client.say("end", may_wait=True, n=3)
        client.flush()
        assert come() == [3]
        client.say("end", b"x" * door.MOST_GATHERED, may_wait=True, n=4)
        assert come() == [4]


def test_a_call_that_is_taken_while_an_end_waits_is_said_with_it():
    door, carried = (importlib.import_module(name, session.__name__) for name in (".door", "..kernel.carried"))
    ours, its = socket.socketpair()
    with ours, its:
        ours.setblocking(False)
        client = door.ClientConnection(ours, carried.SocketWatcher(), lambda *_: None)
        client.has_taken(1)
        client.say("end", may_wait=True, n=1)
        client.has_taken(2)
        client.flush()
        told = [(header["what"], header["taken"]) for header, _ in Inbox().feed(its.recv(1 << 20))]

    assert told == [("end", 1), ("taken", 2)]
