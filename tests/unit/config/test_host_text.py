"""What a host sends in pieces becomes lines, whatever it sends."""

from __future__ import annotations

import time

import pytest

from clusterfn.config import host_text
from clusterfn.config.host_text import Lines, count


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_lines_come_whole_whatever_the_pieces_are(step: int) -> None:
    text, lines = b"one\n\ntwo\xff\0\nthree\nunfinished", Lines()

    found = [line for at in range(0, len(text), step) for line in lines.feed(text[at : at + step])]

    assert found == [b"one", b"", b"two\xff\0", b"three"]
    assert lines.feed(b"\n") == [b"unfinished"]


def test_a_line_without_an_end_takes_no_more_memory_and_hides_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_text, "LONGEST_LINE", 10)
    lines = Lines()

    assert lines.feed(b"before\n" + b"x" * 8) == [b"before"]
    assert [lines.feed(b"x" * 8) for _ in range(5)] == [[]] * 5
    assert lines.feed(b"x\nafter\n" + b"y" * 11 + b"\nlast\n") == [b"after", b"y" * 11, b"last"]


def test_a_line_of_many_pieces_takes_a_time_that_grows_with_its_bytes() -> None:
    def seconds(pieces: int) -> float:
        lines, began = Lines(), time.process_time()
        for _ in range(pieces):
            lines.feed(b"x" * 4096)
        return time.process_time() - began

    assert seconds(8000) < 5  # 33 MB; copied each time it would be 130 GB


def test_a_number_that_cannot_be_shown_is_none() -> None:
    assert count(7) == 7
    for told in (-1, 1 << 63, 0.5, "7", None, True):
        with pytest.raises(ValueError, match="a number, not"):
            count(told)
