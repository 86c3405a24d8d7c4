"""Everything that a host sends, and everything that its agent reads, with damage in it: named errors only."""

from __future__ import annotations

import contextlib

from hypothesis import strategies as st

from clusterfn.errors import HostError
from clusterfn.hostlink.frames import FrameReader, pack
from tests.fuzz import damaged, fuzzed

FRAMES = [
    pack({"id": 2, "end": True, "ok": True, "existed": False}) + pack({"id": 3, "offset": 0}, b"some bytes"),
    pack({"id": 2, "end": True, "ok": False, "error": {"kind": "io", "message": "Input/output error", "path": "/p"}}),
    pack({"id": 4, "end": True, "ok": True, "files": [["a", 1, 0.5, 0o600]]}),
    pack({"id": 5, "same": False, "rc": 0, "out": 2, "age_s": 0.1}, b"outerr"),
]


@fuzzed(data=damaged(FRAMES), sizes=st.binary(max_size=8))
def test_a_client_reads_frames_or_says_what_is_none(data: bytes, sizes: bytes) -> None:
    pieces = [data[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(len(sizes))] + [data[sum(sizes) :], b""]
    reader = FrameReader(lambda _: pieces.pop(0) if pieces else b"")

    with contextlib.suppress(HostError):
        while (frame := reader.frame()) is not None:
            assert isinstance(frame[0]["id"], int)
