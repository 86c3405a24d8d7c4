"""Frames come out of a stream as they went in, whatever pieces it comes in."""

from __future__ import annotations

import io
import random

import pytest

from clusterfn.config.config_file import LOCAL
from clusterfn.errors import HostError
from clusterfn.hosts.rpc.frames import FrameReader, Header, error_of, pack


@pytest.mark.parametrize("seed", range(5))
def test_frames_come_out_of_any_pieces_whole_and_in_order(seed: int) -> None:
    choose = random.Random(seed)
    sent: list[tuple[Header, bytes]] = []
    for number in range(60):
        sent.append(({"id": number, "size": 1}, choose.randbytes(choose.choice([0, 1, 5000, 70_000]))))
    data = io.BytesIO(b"".join(pack(header, body) for header, body in sent))
    reader = FrameReader(lambda size: data.read(min(size, choose.choice([1, 10, 1000, 20_000]))))

    assert list(iter(reader.frame, None)) == sent


def test_a_frame_that_is_none_is_an_error_before_its_body_has_come() -> None:
    garbage = b"\0\0\0\5" + (5000).to_bytes(8, "big") + b"wrong"
    data = io.BytesIO(pack({"id": 2}, b"before") + garbage)
    reader = FrameReader(data.read)

    assert reader.frame() == ({"id": 2}, b"before")
    with pytest.raises(HostError, match="invalid frame: its header is not JSON"):
        reader.frame()


def test_a_root_of_the_built_in_host_that_cannot_be_used_has_its_own_hint():
    error = error_of(LOCAL, {"kind": "denied", "message": "Permission denied", "path": "/.clusterfn"})

    assert error.hint.startswith("in clusterfn.yml, add `hosts: {local: {scheduler: local, root: FOLDER}}`")
