"""Large archives travel in pieces: what an earlier try has brought is not sent again; all of them make the archive."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge import layout
from clusterfn.bridge.builder import fetch
from clusterfn.calls import environment_upload
from clusterfn.hosts.rpc.requests import pieces_of

DATA = os.urandom(1000)
SHA256 = hashlib.sha256(DATA).hexdigest()


class There:
    """A host of which only the present files matter."""

    def missing(self, paths: list[str]) -> set[str]:
        return {path for path in paths if not os.path.exists(path)}


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environment_upload, "WHOLE_BYTES", 300)
    monkeypatch.setattr(environment_upload, "PIECE_BYTES", 300)
    path = tmp_path / "archive"
    path.write_bytes(DATA)
    return path


def sent(root: Path, archive: Path) -> list[tuple[str, Any]]:
    return list(environment_upload.parts_to_send(There(), str(root), SHA256, archive))  # type: ignore[arg-type]


def bring(parts: list[tuple[str, Any]]) -> None:
    for path, data in parts:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_bytes(b"".join(pieces_of(data)))


def join(root: Path) -> str | None:
    return fetch.join_pieces(str(root), SHA256, "t", lambda _: None)


def test_the_pieces_make_the_archive_and_are_gone(tmp_path: Path, archive: Path) -> None:
    parts = sent(tmp_path, archive)
    bring(parts)

    assert len(parts) == 4
    assert join(tmp_path) == layout.blob(str(tmp_path), SHA256)
    assert Path(layout.blob(str(tmp_path), SHA256)).read_bytes() == DATA
    assert not os.path.exists(layout.pieces_dir(str(tmp_path), SHA256))


def test_what_an_earlier_try_has_brought_is_not_sent_again(tmp_path: Path, archive: Path) -> None:
    parts = sent(tmp_path, archive)
    bring(parts[:3])

    assert join(tmp_path) is None
    rest = sent(tmp_path, archive)
    assert [path for path, _ in rest] == [parts[3][0]]
    bring(rest)
    assert join(tmp_path) is not None


def test_a_small_archive_goes_whole(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_upload, "WHOLE_BYTES", 1000)

    assert sent(tmp_path, archive) == [(layout.blob(str(tmp_path), SHA256), archive)]


def test_one_that_was_joined_by_another_builder_is_taken(tmp_path: Path, archive: Path) -> None:
    bring(sent(tmp_path, archive))
    names = fetch.complete_pieces(layout.pieces_dir(str(tmp_path), SHA256))
    assert names == [f"{n}-of-4" for n in range(4)]
    first = join(tmp_path)

    assert join(tmp_path) == first


def test_other_files_among_the_pieces_do_not_count(tmp_path: Path, archive: Path) -> None:
    bring(sent(tmp_path, archive)[:3])
    folder = Path(layout.pieces_dir(str(tmp_path), SHA256))
    (folder / "3-of-5").write_bytes(b"of another size")
    (folder / ".3-of-4.new").write_bytes(b"half")

    assert join(tmp_path) is None
