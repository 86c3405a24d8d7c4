"""A large value lands once, in memory or in a mapped file; its checksum is taken on the way."""

from __future__ import annotations

import itertools
import mmap
import os
import zlib
from pathlib import Path

import pytest

from clusterfn.hosts import landing
from clusterfn.hosts.landing import Landing

LINE, BODY = b'{"a": 1}\n', os.urandom(300_000)


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("step", [7, 9, 10, 65536, 1 << 20])
def test_the_bytes_and_their_checksum_are_those_that_came(tmp_path: Path, in_file: bool, step: int) -> None:
    data = LINE + BODY[: 20_000 if step < 100 else None]
    place = Landing(len(data), str(tmp_path) if in_file else None)

    for at in range(0, len(data), step):
        place.take(data[at : at + step])
    value = place.value()

    assert bytes(value) == data
    assert isinstance(value, landing.LargeValue)
    assert value.crc == zlib.crc32(data[len(LINE) :])
    value[3:5] = b"xy"
    assert bytes(memoryview(value)[:6]) == data[:3] + b"xy" + data[5:6], "it can be written to"
    assert list(tmp_path.iterdir()) == [], "the file has no name"


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="the system has no large pages")
@pytest.mark.parametrize("seconds", [0.0, 0.5])
@pytest.mark.parametrize("step", [100_003, 2 << 20, 5 << 20])
def test_large_pages_are_given_up_when_the_first_use_of_one_is_slow(
    monkeypatch: pytest.MonkeyPatch, step: int, seconds: float
) -> None:
    clock, advice, data = itertools.count(), [], LINE + os.urandom(7 << 20)
    monkeypatch.setattr(landing.time, "thread_time", lambda: next(clock) * seconds)
    monkeypatch.setattr(landing.LargeValue, "madvise", lambda _memory, what: advice.append(what))
    touched: list[int] = []

    def write(memory: landing.LargeValue, at: int | slice, what: bytes) -> None:
        if isinstance(at, int):
            touched.append(at)
        elif not seconds:
            assert touched[-1] >= min(at.stop, len(data) - 1) // (2 << 20) * (2 << 20), "used before it was measured"
        super(landing.LargeValue, memory).__setitem__(at, what)

    monkeypatch.setattr(landing.LargeValue, "__setitem__", write, raising=False)
    place = Landing(len(data))

    for at in range(0, len(data), step):
        place.take(data[at : at + step])

    assert touched == [page << 21 for page in range(1 if seconds else 4)]
    assert bytes(place.value()) == data
    assert advice == [mmap.MADV_HUGEPAGE, mmap.MADV_NOHUGEPAGE][: 2 if seconds else 1]
    assert next(clock) == (2 if seconds else 2 * 4), "each page of 2 MB is measured, and nothing once it is slow"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
@pytest.mark.parametrize("in_file", [False, True])
def test_what_a_forked_process_writes_to_it_stays_there(tmp_path: Path, in_file: bool) -> None:
    place = Landing(len(LINE), str(tmp_path) if in_file else None)
    place.take(LINE)
    value = place.value()
    pid = os.fork()
    if not pid:
        value[:3] = b"xyz"
        os._exit(0)
    os.waitpid(pid, 0)

    assert bytes(value) == LINE


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("pieces", [[LINE, b"abc"], []], ids=["a part", "nothing"])
def test_of_a_part_there_is_no_more_than_what_came(tmp_path: Path, in_file: bool, pieces: list[bytes]) -> None:
    place = Landing(1 << 20, str(tmp_path) if in_file else None)
    for piece in pieces:
        place.take(piece)

    value = place.value()

    assert (bytes(value), getattr(value, "crc", None)) == (b"".join(pieces), None)


def test_a_folder_in_memory_or_on_a_full_disk_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_in_memory = landing.folder_for(1) != landing.folder_for(0)

    assert not kept_in_memory
    assert landing.folder_for(1 << 60) is None
    monkeypatch.setattr(landing.tempfile, "gettempdir", lambda: "/dev/shm")
    assert landing.folder_for(1) != "/dev/shm"


def test_values_that_come_at_once_share_the_disk_that_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(landing.tempfile, "gettempdir", lambda: str(tmp_path))
    disk = landing.shutil.disk_usage(tmp_path)
    other = disk._replace(free=0)
    room = disk._replace(free=5 << 30)
    monkeypatch.setattr(landing.shutil, "disk_usage", lambda folder: room if folder == str(tmp_path) else other)
    first = landing.folder_for(3 << 30)
    assert first == str(tmp_path)

    coming = Landing(3 << 30, first)

    assert landing.folder_for(3 << 30) is None
    del coming
    assert landing.folder_for(3 << 30) == first


def test_no_folder_for_temporary_files_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(landing.tempfile, "gettempdir", none)

    assert landing.folder_for(1 << 60) is None
