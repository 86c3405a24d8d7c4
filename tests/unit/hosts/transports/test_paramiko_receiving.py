"""What paramiko receives reaches its reader whole and in order, with few wakeups."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Iterator

import pytest
from paramiko.buffered_pipe import PipeTimeout

from clusterfn.hosts.transports.paramiko_receiving import QuickSocket, ReceivedPieces

WAIT_S = 10.0


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


def test_after_the_end_the_rest_comes_and_then_nothing() -> None:
    received = ReceivedPieces()
    received.feed(b"abc")
    received.close()

    assert [received.read(2), received.read(2), received.read(2)] == [b"ab", b"c", b""]


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


def test_a_waiting_reader_wakes_for_a_piece_and_for_the_end() -> None:
    for end in (lambda received: received.feed(b"abc"), lambda received: received.close()):
        received = ReceivedPieces()
        thread, read = reading(received)

        end(received)
        thread.join(WAIT_S)

        assert read in ([b"abc"], [b""])


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


def test_a_single_packet_wakes_the_readers_of_all_channels_of_a_socket(
    pair: tuple[QuickSocket, socket.socket],
) -> None:
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


def test_what_is_given_away_reaches_no_reader_which_counts_it_and_wakes_for_a_part_of_a_window() -> None:
    received, taken = ReceivedPieces(), bytearray()
    received.feed(b"before")
    received.give_to(lambda piece: not taken.extend(piece))
    thread, read = reading(received)

    for _ in range(11):
        received.feed(bytes(32_768))
    thread.join(0.05)
    assert read == [], "less than a part of the window has come"
    received.feed(bytes(32_768))
    thread.join(WAIT_S)

    assert [len(each) for each in read] == [len(taken)] == [6 + 12 * 32_768]
    assert (received.gives, len(received)) == (True, 0)


def test_it_gives_nothing_after_a_refusal_nor_after_the_end_and_the_reader_has_the_rest() -> None:
    for end in (lambda received: received.feed(b"last"), lambda received: received.close()):
        received, taken = ReceivedPieces(), bytearray()
        received.give_to(lambda piece, taken=taken: not taken.extend(piece) and piece != b"last")
        received.feed(b"first")
        thread, read = reading(received)

        end(received)
        thread.join(WAIT_S)
        received.feed(b"rest")

        assert [len(each) for each in read] == [len(taken)]
        assert (received.gives, received.read(100)) == (False, b"rest")


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


def test_a_socket_gives_all_bytes_in_the_sizes_asked_for_and_then_its_end(
    pair: tuple[QuickSocket, socket.socket],
) -> None:
    sock, there = pair
    sent = os.urandom(2_000_000)
    sending = threading.Thread(target=lambda: (there.sendall(sent), there.close()), daemon=True)
    sending.start()

    sizes = itertools.cycle([1, 16, 32_704, 5000, 300_000])
    pieces = list(iter(lambda: sock.recv(next(sizes)), b""))
    sending.join(WAIT_S)

    assert b"".join(pieces) == sent
    assert [len(piece) for piece in pieces[:2]] == [1, 16]
    assert sock.recv(1) == b""


def test_a_socket_that_waits_too_long_says_so_and_loses_nothing(pair: tuple[QuickSocket, socket.socket]) -> None:
    sock, there = pair
    sock.settimeout(0.01)

    with pytest.raises(socket.timeout):
        sock.recv(10)
    there.sendall(b"late")

    assert sock.recv(10) == b"late"
