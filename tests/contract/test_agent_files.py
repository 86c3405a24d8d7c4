"""Files that the agent reads and writes for its client, under each Python, and what comes after a failure."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from clusterfn import HostError
from tests.contract.conftest import mode_of
from tests.waiting import WAIT_S, until

# files


def test_a_file_is_put_whole_with_its_mode_and_its_folders(here: Any, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "ü"
    data = os.urandom(700_001)

    assert here.put(str(path), data, mode=0o640).result(WAIT_S)

    assert path.read_bytes() == data
    assert (mode_of(path), mode_of(path.parent)) == (0o640, 0o700)


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 256 * 1024 + 1, 9 * 2**20])
def test_any_size_goes_up_and_comes_down(here: Any, tmp_path: Path, size: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(size))
    got: list[bytes] = []

    here.put(str(tmp_path / "there"), source).result(WAIT_S)
    answered = here.get(str(tmp_path / "there"), got.append).result(WAIT_S)

    assert (answered, b"".join(got)) == (size, source.read_bytes())


def test_a_file_is_whole_although_another_takes_its_name(here: Any, tmp_path: Path) -> None:
    file, got = tmp_path / "state", bytearray()
    file.write_bytes(b"1" * 2**20 * 64)

    def sink(piece: bytes) -> None:
        if not got:
            (tmp_path / "new").write_bytes(b"2" * 2**20 * 64)
            (tmp_path / "new").replace(file)
        got.extend(piece)

    here.get(str(file), sink).result(WAIT_S)
    assert bytes(got) == b"1" * 2**20 * 64


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(here: Any, tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(b"1" * 2**20 * 64)

    with pytest.raises(HostError, match="became shorter while it was read"):
        here.get(str(file), lambda _: os.truncate(file, 2**20)).result(WAIT_S)


def test_hundreds_of_large_files_come_at_once(here: Any, tmp_path: Path) -> None:
    got = [bytearray() for _ in range(200)]
    for number in range(200):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 300_000)

    replies = [here.get(str(tmp_path / str(number)), each.extend) for number, each in enumerate(got)]
    for reply in replies:
        reply.result(WAIT_S)

    assert got == [bytes([number]) * 300_000 for number in range(200)]
    open_files = os.listdir(f"/proc/{here.facts.pid}/fd")
    assert len(open_files) < 30, "each file was closed"


def test_only_regular_files_are_listed_and_read(here: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("a")
    (tmp_path / "link").symlink_to("folder/a")
    (tmp_path / "latest").symlink_to("folder")
    (tmp_path / "broken").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")

    entries = here.list(str(tmp_path), "**").result(WAIT_S)
    assert [(entry.name, entry.size) for entry in entries] == [("folder/a", 1), ("link", 1)]

    with pytest.raises(HostError, match="not a regular file"):
        here.get(str(tmp_path / "pipe"), bytes).result(WAIT_S)
    with pytest.raises(HostError, match="Is a directory"):
        here.get(str(tmp_path / "latest"), bytes).result(WAIT_S)


def test_an_argument_that_changes_while_it_is_sent_is_rejected(here: Any, tmp_path: Path) -> None:
    data = bytearray(os.urandom(3 << 20))
    crc = zlib.crc32(data)
    data[2 << 20] ^= 1

    with pytest.raises(HostError, match="did the file change while it was sent"):
        here.put(str(tmp_path / "blob"), memoryview(data), crc=crc).result(WAIT_S)

    assert list(tmp_path.glob("blob*")) == []


@pytest.mark.parametrize("name", ["cost_$HOME.csv", "ü" * 120])
def test_a_file_may_have_any_name(here: Any, tmp_path: Path, name: str) -> None:
    got = bytearray()
    for size in (3, 2**20):  # the second one could be resumed
        here.put(f"{tmp_path}/{size}/{name}", b"x" * size).result(WAIT_S)
        here.get(f"{tmp_path}/{size}/{name}", got.extend).result(WAIT_S)
        assert os.listdir(tmp_path / str(size)) == [name]

    assert bytes(got) == b"x" * (3 + 2**20)


def test_a_blob_that_is_there_is_left_as_it_is(here: Any, tmp_path: Path) -> None:
    crc = zlib.crc32(b"abc")
    first = here.put(str(tmp_path / "blob"), b"abc", crc=crc).result(WAIT_S)
    before = (tmp_path / "blob").stat().st_ino

    second = here.put(str(tmp_path / "blob"), b"abc", crc=crc).result(WAIT_S)

    assert (first, second, (tmp_path / "blob").stat().st_ino) == (True, False, before)


def test_damaged_bytes_are_refused_and_leave_nothing(here: Any, tmp_path: Path) -> None:
    folder = tmp_path / "blobs"

    with pytest.raises(HostError, match="another checksum"):
        here.put(str(folder / "blob"), b"abd", crc=zlib.crc32(b"abc")).result(WAIT_S)

    assert list(folder.iterdir()) == []


def test_what_a_killed_agent_left_is_removed_when_it_is_a_day_old(here: Any, tmp_path: Path) -> None:
    old = [tmp_path / "b" / name for name in ("x.part-7-3", "tree.part-7-4", "tree.part-7-4/d", "blob", "x.part-7")]
    new = [tmp_path / "b" / name for name in ("x.part-7-5", "tree.part-7-6", "tree.part-7-6/d")]
    for path in (*old, *new):
        path.mkdir(parents=True) if "tree" in path.name else path.parent.mkdir(exist_ok=True)
        path.exists() or path.write_bytes(b"x")
    for path in (*reversed(old), new[1]):
        os.utime(path, (0, time.time() - 25 * 3600))

    here.put(str(tmp_path / "b" / "y"), b"y").result(WAIT_S)

    until(lambda: not old[0].exists() and not old[1].exists())
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "blob", "tree.part-7-6", "x.part-7", "x.part-7-5", "y",
    ]  # fmt: skip


def test_an_upload_elsewhere_removes_an_old_part_of_the_bridge(here: Any, tmp_path: Path) -> None:
    bridge = Path(here.host.root).expanduser() / "bridge"
    bridge.mkdir(parents=True, exist_ok=True)
    old = bridge / f"{tmp_path.name}.part-7-3"
    old.write_bytes(b"x")
    os.utime(old, (0, time.time() - 25 * 3600))

    here.put(str(tmp_path / "y"), b"y").result(WAIT_S)

    until(lambda: not old.exists())


def test_have_and_paths_with_tilde_and_variables(here: Any, tmp_path: Path) -> None:
    answer = here.have([str(tmp_path), str(tmp_path / "no"), "~/", "$HOME"]).result(WAIT_S)

    assert answer == [True, False, True, True]


def test_a_missing_file_is_named(here: Any) -> None:
    with pytest.raises(HostError, match="/no/such/file does not exist on here") as caught:
        here.get("/no/such/file", print).result(WAIT_S)

    assert caught.value.kind == "missing"  # type: ignore[attr-defined]


# what comes after what


def test_what_comes_after_a_failure_is_skipped_with_its_reason(here: Any, tmp_path: Path) -> None:
    failing = here.run(["/no/such/program"])
    put = here.put(str(tmp_path / "d" / "file"), b"x", after=[failing])
    run = here.run(["touch", str(tmp_path / "ran")], after=[put])

    with pytest.raises(HostError, match="No such file") as caught:
        run.result(WAIT_S)
    first = failing.exception(WAIT_S)
    assert isinstance(first, HostError)
    assert (str(caught.value), caught.value.kind) == (str(first), first.kind)
    assert not (tmp_path / "ran").exists()
    assert list((tmp_path / "d").iterdir()) == []


def test_what_waits_for_something_that_fails_later_is_skipped_too(here: Any, tmp_path: Path) -> None:
    failing = here.run(["sleep", "600"], timeout_s=0.3)
    run = here.run(["touch", str(tmp_path / "ran")], after=[failing])
    last = here.run(["touch", str(tmp_path / "ran")], after=[run])

    with pytest.raises(HostError, match="did not end within 0.3 s"):
        last.result(WAIT_S)
    assert not (tmp_path / "ran").exists()


def test_what_a_program_makes_is_private(here: Any, tmp_path: Path) -> None:
    here.run(["touch", "made"], cwd=str(tmp_path)).result(WAIT_S)

    assert mode_of(tmp_path / "made") == 0o600
