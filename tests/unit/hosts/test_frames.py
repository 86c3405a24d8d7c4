"""Frames come out of a stream as they went in, read by the reader or handed over by the thread that receives."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from clusterfn.config.config_file import LOCAL
from clusterfn.errors import HostError
from clusterfn.hosts.rpc.frames import FrameReader, Header, error_of, pack

LARGE = 5000  # bytes of a piece that is handed over; smaller ones are read with what follows them


class Cable:
    """Both ends of a stream that comes in packets of many sizes.

    Attributes:
        delivered: How often `deliver` was called.
    """

    def __init__(self, data: bytes, choose: random.Random) -> None:
        self._data = data
        self._choose = choose
        self.delivered = 0

    def read(self, size: int) -> bytes:
        size = min(size, self._choose.choice([1, 10, 1000, 20_000]))
        data, self._data = self._data[:size], self._data[size:]
        return data

    def deliver(self, take: Callable[[bytes], bool]) -> None:
        self.delivered += 1
        try:
            while (data := self.read(1 << 20)) and take(data):
                pass
        except Exception as error:
            raise AssertionError("the thread that receives cannot take an error") from error


@pytest.mark.parametrize("refused", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_pieces_that_are_handed_over_and_frames_that_are_read_keep_their_order(seed: int, refused: float) -> None:
    choose = random.Random(seed)
    sent: list[tuple[Header, bytes]] = []
    for number in range(60):
        body = choose.randbytes(choose.choice([0, 1, LARGE, LARGE, 70_000]))
        sent.append(({"id": number, **({"size": len(body)} if choose.random() < 0.8 else {})}, body))
    cable = Cable(b"".join(pack(header, body) for header, body in sent), choose)
    reader, came, taken = FrameReader(cable.read), {number: b"" for number in range(60)}, 0
    order: list[int] = []

    def take(header: Header, part: bytes) -> bool:
        nonlocal taken
        if choose.random() < refused:
            return False
        taken += 1
        order.append(header["id"])
        came[header["id"]] += part
        return True

    reader.hand_over(cable.deliver, take)
    while (frame := reader.frame()) is not None:
        order.append(frame[0]["id"])
        came[frame[0]["id"]] += frame[1]

    assert came == {header["id"]: body for header, body in sent}
    assert order == sorted(order)
    assert (cable.delivered > 0 and taken > 0) == (refused < 1)


def test_a_frame_that_is_none_is_reported_to_the_reader_and_not_to_the_thread_that_receives() -> None:
    garbage = b"\0\0\0\5" + (LARGE).to_bytes(8, "big") + b"wrong" + bytes(LARGE)
    cable = Cable(pack({"id": 2, "size": LARGE}, bytes(LARGE)) + garbage, random.Random(1))
    reader, taken = FrameReader(cable.read), bytearray()
    reader.hand_over(cable.deliver, lambda header, part: not taken.extend(part))

    with pytest.raises(HostError, match="invalid frame: its header is not JSON"):
        reader.frame()
    assert len(taken) == LARGE


def test_a_root_of_the_built_in_host_that_cannot_be_used_has_its_own_hint():
    error = error_of(LOCAL, {"kind": "denied", "message": "Permission denied", "path": "/.clusterfn"})

    assert error.hint.startswith("in clusterfn.yml, add `hosts: {local: {scheduler: local, root: FOLDER}}`")
