"""The journal of an element's items: what is written after a write that failed is whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterfn.bridge.layout import JOURNAL, RETURNED, VALUES
from clusterfn.bridge.supervisor.group_files import Chunks, ItemJournal, journal_line
from clusterfn.bridge.supervisor.verdict import Verdict


def broken_in_its_midst(write: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
    """A disk that takes a part of what is written first, refuses the rest, and takes all after that."""
    calls = iter(["part", "refusal"])

    def either(fd: int, data: bytes) -> int:
        answer = next(calls, "all")
        if answer == "refusal":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(fd, data[:3] if answer == "part" else data)

    return either


@pytest.mark.parametrize("what", ["value", "line"])
def test_what_follows_a_write_that_failed_in_its_midst_is_whole(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    journal = ItemJournal(str(tmp_path), sync=False)
    value = tmp_path / "value.pkl"
    value.write_bytes(b"a value, and the end of a longer one before it")
    verdict = Verdict(RETURNED, "", value={"size": 7})

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken_in_its_midst(os.write))
        with pytest.raises(OSError, match="Input/output"):
            journal.end(0, verdict, str(value)) if what == "value" else journal.begin(0)
    journal.end(0, verdict, str(value))
    journal.end(1, verdict, str(value))

    found = [line for line in map(journal_line, (tmp_path / JOURNAL).read_bytes().split(b"\n")) if line is not None]
    assert [line["index"] for line in found] == [0, 1]
    values = (tmp_path / VALUES).read_bytes()
    assert [values[line["at"] : line["at"] + 7] for line in found] == [b"a value"] * 2
    assert values.endswith(b"a valuea value")


def test_a_chunk_that_its_element_finishes_while_another_looks_is_not_taken_over(tmp_path, monkeypatch):
    chunks = Chunks(str(tmp_path), {"count": 2, "chunk": 2, "elements": 2})
    chunks.make_folders()
    assert chunks.take(1, 2) == 0
    monkeypatch.setattr(chunks, "end_of", lambda element: chunks.finish(0) or {"final": True})

    assert chunks.take_over(2) is None
