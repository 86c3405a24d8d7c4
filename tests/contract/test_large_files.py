"""Large files and values: they come while they are written, and nothing of them is taken for what it is not."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from clusterfn import HostError
from tests.waiting import WAIT_S, until

MB = 1 << 20


def write(path: Path, data: bytes, mode: str = "ab") -> None:
    with path.open(mode) as file:
        file.write(data)


def test_a_large_file_comes_while_it_is_written(here: Any, tmp_path: Path) -> None:
    data, came, calls = os.urandom(5 * MB + 77), bytearray(), []
    value, outcome = tmp_path / "value", tmp_path / "outcome"
    value.touch()
    waiting = here.follow(
        [], str(outcome), [(str(value), came.extend)], on_content=lambda _: calls.append(len(came)),
        on_early=calls.append,
    )  # fmt: skip
    write(value, data[: 2 * MB])
    until(lambda: len(came) >= 2 * MB)
    assert not waiting.done()

    write(value, data[2 * MB :])
    write(tmp_path / "o", b"{}")
    (tmp_path / "o").rename(outcome)

    assert waiting.result(WAIT_S) == b"{}"
    assert bytes(came) == data
    assert not any(call is True for call in calls), "it was never begun again"
    assert [call for call in calls if call is not False][0] >= 2 * MB, "the outcome came when the first part was here"


def test_a_file_that_is_begun_again_makes_void_what_came_of_it(here: Any, tmp_path: Path) -> None:
    came, data = bytearray(), os.urandom(3 * MB)
    value = tmp_path / "value"
    value.touch()

    def on_early(again: bool) -> None:
        if again:
            came.clear()

    waiting = here.follow([], str(tmp_path / "outcome"), [(str(value), came.extend)], on_early=on_early)
    write(value, b"x" * 4 * MB)
    until(lambda: len(came) > 3 * MB)  # the last few KB may wait for more
    write(value, b"", "wb")
    until(lambda: not came)
    write(value, data)
    write(tmp_path / "outcome", b"{}")

    waiting.result(WAIT_S)
    assert bytes(came) == data


def test_nothing_comes_early_that_is_small_or_not_wanted(here: Any, tmp_path: Path) -> None:
    early, late, told = bytearray(), bytearray(), []
    for name, size in (("small", 1000), ("large", 3 * MB)):
        write(tmp_path / name, b"x" * size)
    small = here.follow([], str(tmp_path / "o"), [(str(tmp_path / "small"), early.extend)], on_early=told.append)
    large = here.follow([], str(tmp_path / "o"), [(str(tmp_path / "large"), late.extend)])
    here.ping().result(WAIT_S)
    assert (early, late, told) == (b"", b"", [])

    write(tmp_path / "o", b"{}")

    small.result(WAIT_S), large.result(WAIT_S)
    assert (len(early), len(late), told) == (1000, 3 * MB, [])


def test_an_argument_that_changes_while_it_is_sent_is_rejected(here: Any, tmp_path: Path) -> None:
    data = bytearray(os.urandom(3 * MB))
    crc = zlib.crc32(data)
    data[2 * MB] ^= 1

    with pytest.raises(HostError, match="did the file change while it was sent"):
        here.put(str(tmp_path / "blob"), memoryview(data), crc=crc).result(WAIT_S)

    assert list(tmp_path.glob("blob*")) == []
