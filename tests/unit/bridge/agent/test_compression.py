"""What is compressed, on which link: a clock that only the link and the compressor move."""

from __future__ import annotations

import os
import zlib

import pytest

from clusterfn.bridge.agent.compression import LEAST, LONGEST, Compressor, decompress
from clusterfn.bridge.agent.frames import Inbox, pack
from clusterfn.errors import HostError
from clusterfn.hosts.rpc.frames import FrameReader

MB = 1 << 20
TEXT = (b"0123456789abcdef" * LONGEST)[:LONGEST]
NOISE = os.urandom(LONGEST)


class Link:
    """A line that takes so many bytes per second, behind a buffer."""

    def __init__(self, bytes_per_s: float, buffer: int = 2 * MB) -> None:
        self.now = 0.0
        self.sent: list[bytes | None] = []
        self._rate, self._buffer = bytes_per_s, buffer
        self._free_at = 0.0  # when all that was put into the buffer has left it
        self.taken = 0
        self.compressor = self.transfer()

    def transfer(self) -> Compressor:
        return Compressor(lambda: self.taken, lambda: self.now)

    def send(self, piece: bytes, count: int) -> None:
        for _ in range(count):
            small = self.compressor.compress(piece)
            self.sent.append(small)
            self.take(len(piece if small is None else small))

    def take(self, size: int) -> None:
        self.taken += size
        self._free_at = max(self._free_at, self.now) + size / self._rate
        self.now = max(self.now, self._free_at - self._buffer / self._rate)

    @property
    def compressed(self) -> int:
        return sum(small is not None for small in self.sent)


def test_a_slow_link_gets_compressed_pieces_once_its_buffers_are_full() -> None:
    link = Link(4 * MB)

    link.send(TEXT, 400)

    first = next(number for number, small in enumerate(link.sent) if small is not None)
    assert 2 * MB / LONGEST <= first <= 2 * MB / LONGEST + 6
    assert link.compressed > 0.9 * 390
    assert all(small is None or decompress(small) == TEXT for small in link.sent)


def test_a_fast_link_gets_all_pieces_as_they_are() -> None:
    link = Link(64 * MB)
    link.send(TEXT, 400)
    assert link.compressed == 0


def test_a_link_that_was_slow_for_a_moment_is_measured_again() -> None:
    link = Link(200 * MB)
    link.send(TEXT, 20)
    link.now += 2.0
    link.send(TEXT, 400)
    assert link.compressed == 16


def test_what_does_not_become_smaller_is_tried_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, real = [], zlib.compressobj

    def counted(level: int) -> object:
        tries.append(level)
        return real(level)

    monkeypatch.setattr(zlib, "compressobj", counted)
    link = Link(4 * MB)

    link.send(NOISE, 1000)

    assert link.compressed == 0
    assert 4 <= len(tries) <= 12


def test_a_compressor_that_takes_longer_than_it_saves_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    link, real = Link(4 * MB), zlib.compressobj

    def slow(level: int) -> object:
        link.now += LONGEST / (4 * MB)
        return real(level)

    monkeypatch.setattr(zlib, "compressobj", slow)
    link.send(TEXT, 400)

    assert 0 < link.compressed <= 10  # those of its tries: they are small, and the time is spent


def test_one_piece_that_took_long_to_compress_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    link, real, count = Link(4 * MB), zlib.compressobj, 0

    def interrupted(level: int) -> object:
        nonlocal count
        count += 1
        if count % 5 == 1:
            link.now += 0.2
        return real(level)

    monkeypatch.setattr(zlib, "compressobj", interrupted)
    link.send(TEXT, 400)

    assert link.compressed > 0.9 * 390


def test_data_that_changes_is_noticed() -> None:
    link = Link(4 * MB)
    for piece in (TEXT, NOISE, TEXT):
        link.sent.clear()
        link.send(piece, 200)
        assert link.compressed == 0 if piece is NOISE else link.compressed > 120, piece[:4]


def test_waiting_for_more_to_send_says_nothing_of_the_link() -> None:
    link = Link(200 * MB)
    for _ in range(50):
        link.now += 1.0
        link.compressor.rest()
        link.send(TEXT, 1)
    assert link.compressed == 0


def test_many_transfers_that_take_turns_do_not_make_a_link_slow() -> None:
    link = Link(200 * MB)
    transfers = [link.transfer() for _ in range(16)]
    for _ in range(50):
        for transfer in transfers:
            assert transfer.compress(TEXT) is None
            link.take(LONGEST)


def test_small_pieces_stay_as_they_are() -> None:
    link = Link(1 * MB, buffer=0)
    link.send(TEXT, 100)
    assert link.compressor.compress(TEXT[: LEAST - 1]) is None


@pytest.mark.parametrize(
    "wrong",
    [b"", b"no zlib", zlib.compress(TEXT)[:-1], zlib.compress(TEXT) + b"x", zlib.compress(bytes(LONGEST + 1))],
    ids=["empty", "other", "cut", "longer", "bomb"],
)
def test_a_piece_that_is_none_is_rejected(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="compressed piece"):
        decompress(wrong)

    frame = pack({"id": 2, "size": 5, "zlib": True}, wrong)
    with pytest.raises(HostError, match="compressed piece"):
        FrameReader(lambda _: b"", frame).frame()


def test_both_readers_put_a_compressed_piece_together() -> None:
    small = zlib.compress(NOISE)
    frames = [pack({"id": 2, "do": "chunk", "size": 9, "zlib": True}, small), pack({"id": 3}, b"next")]
    stream = b"".join(frames)
    pieces = [stream[at : at + 1000] for at in range(0, len(stream), 1000)]

    reader = FrameReader(lambda _: pieces.pop(0) if pieces else b"")
    assert reader.frame() == ({"id": 2, "do": "chunk", "size": 9, "zlib": True}, NOISE)
    assert reader.frame() == ({"id": 3}, b"next")

    inbox = Inbox(in_parts=True)
    found = [frame for at in range(0, len(stream), 1000) for frame in inbox.feed(stream[at : at + 1000])]
    assert [(header["id"], len(body)) for header, body in found] == [(2, len(small)), (3, 4)]
    assert decompress(found[0][1]) == NOISE
