"""Uploads that continue after a lost connection, and programs that cannot be loaded, by an agent in this process."""

from __future__ import annotations

import os
import zlib
from typing import Any

import pytest

pytest.importorskip("fcntl")

from tests.fakes.agent_client import Client
from tests.waiting import until


def test_a_program_that_takes_long_to_load_keeps_no_other_request_waiting(client: Client, monkeypatch, tmp_path):
    go = tmp_path / "go"
    monkeypatch.setattr(os, "setsid", lambda: until(go.exists))  # in the child, where hundreds want the cores
    places = {"log": str(tmp_path / "log"), "cwd": str(tmp_path)}
    client.ask(id=2, do="spawn", argv=["true"], **places)
    client.ask(id=3, do="run", argv=["true"])
    client.ask(id=4, do="have", paths=[])
    until(lambda: client.turns(1) or client.listen() or client.heard)
    before = list(client.heard)
    go.touch()
    until(lambda: client.turns(1) or client.listen() or len(client.heard) >= 4)

    assert [each["id"] for each in before] == [4]
    assert next(each for each in client.heard if each["id"] == 2)["pid"] > 0


@pytest.mark.parametrize("fields", [{"argv": ["/no/such/program"]}, {"argv": ["true"], "cwd": "/no/such/folder"}])
@pytest.mark.parametrize("do", ["spawn", "run", "converse"])
def test_a_program_that_cannot_be_loaded_is_named(client: Client, do: str, fields: dict[str, Any], tmp_path):
    client.ask(id=2, do=do, log=str(tmp_path / "log"), **{"cwd": "/", **fields})
    until(lambda: client.turns(1) or client.listen() or client.heard)

    (told,) = client.heard
    assert (told["ok"], told["error"]["kind"]) == (False, "missing")
    assert told["error"]["path"].startswith("/no/such/")
    assert not client.agent.children and len(client.agent.readers) == 1


@pytest.mark.parametrize(("sync", "asked"), [(True, ["fsync"]), (False, [])])
def test_the_disk_gets_an_upload_at_once_or_whenever(client, tmp_path, monkeypatch, sync, asked):
    told: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: told.append("fsync"))

    client.ask(id=2, do="put", path=str(tmp_path / "x"), size=3, sync=sync)
    client.send(b"abc", id=2, last=True)

    assert (tmp_path / "x").read_bytes() == b"abc"
    assert list(dict.fromkeys(told)) == asked


def test_what_was_altered_before_an_upload_continues_is_seen_and_removed(client: Client, tmp_path):
    data = os.urandom(2_000_000)
    ask = {"do": "put", "path": str(tmp_path / "b"), "size": len(data), "crc": zlib.crc32(data), "resume": 77}
    client.ask(id=2, **ask)
    client.send(data[:1_000_000], id=2)
    (part,) = tmp_path.glob("b.part-*")
    client.lose()
    part.write_bytes(bytes([data[0] ^ 1]) + data[1:1_000_000])

    client.ask(id=3, **ask, resumed=1)
    client.answer_of(3)
    client.send(data[1_000_000:], id=3, last=True)

    assert "another checksum" in client.answer_of(3)["error"]["message"]
    assert list(tmp_path.iterdir()) == []


def test_an_upload_of_which_nothing_is_left_begins_again(client: Client, tmp_path):
    ask = {"do": "put", "path": str(tmp_path / "b"), "size": 3, "crc": zlib.crc32(b"abc"), "resume": 77, "resumed": 2}
    client.ask(id=3, **ask)
    assert client.answer_of(3)["at"] == 0
    client.send(b"abc", id=3, last=True)

    until(lambda: client.turns(1) or (tmp_path / "b").exists())
    assert (tmp_path / "b").read_bytes() == b"abc"


def rows_of(files: dict[str, bytes]) -> list[list[Any]]:
    return [[name, len(content), 0o400, zlib.crc32(content)] for name, content in files.items()]


@pytest.mark.parametrize("lost_at", [0, 1, 3, 4, 300_000, 300_003, 300_004])
def test_a_tree_continues_in_the_file_that_the_lost_agent_has_reached(client: Client, tmp_path, lost_at: int):
    files = {"a": b"abc", "empty": b"", "d/large": os.urandom(300_000), "last": b"x"}
    data = b"".join(files.values())
    ask = {"do": "put", "path": str(tmp_path / "tree"), "files": rows_of(files), "resume": 5}
    client.ask(id=2, **ask)
    client.send(data[:lost_at], id=2)
    client.lose()

    client.ask(id=3, **ask, resumed=1)
    assert client.answer_of(3)["at"] == lost_at
    client.send(data[lost_at:], id=3, last=True)

    assert client.answer_of(3)["ok"] is True
    assert {name: (tmp_path / "tree" / name).read_bytes() for name in files} == files
    assert (tmp_path / "tree" / "last").stat().st_mode & 0o777 == 0o400
    assert [each.name for each in tmp_path.iterdir()] == ["tree"]


def test_an_upload_that_is_stopped_leaves_nothing(client: Client, tmp_path):
    client.ask(id=2, do="put", path=str(tmp_path / "b"), size=1000, resume=77)
    client.send(b"abc", id=2)
    client.ask(id=3, do="stop", target=2)
    client.turns()

    assert list(tmp_path.iterdir()) == []


def test_a_tree_whose_last_file_did_not_come_is_none(client: Client, tmp_path):
    client.ask(id=2, do="put", path=str(tmp_path / "tree"), files=[["a", 3, 0o600], ["b", 1, 0o600]])
    client.send(b"abc", id=2, last=True)

    assert "not as many bytes" in client.answer_of(2)["error"]["message"]
    assert list(tmp_path.iterdir()) == []


def test_a_tree_of_more_files_than_may_be_open_reaches_the_disk(client: Client, tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    rows = [[f"{number:04}", 1, 0o600] for number in range(200)]
    most = max(map(int, os.listdir("/proc/self/fd"))) + 50
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    try:
        client.ask(id=2, do="put", path=str(tmp_path / "tree"), files=rows)
        client.send(b"x" * 200, id=2, last=True)
        answer = client.answer_of(2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert answer["ok"] is True
    assert len(list((tmp_path / "tree").iterdir())) == 200


def test_an_agent_that_is_no_longer_heard_makes_no_second_folder(client: Client, tmp_path):
    files = {"a": b"abc", "d/b": b"defg", "d/c": b"h"}
    ask = {"do": "put", "path": str(tmp_path / "tree"), "files": [[n, len(c), 0o600] for n, c in files.items()]}
    client.ask(id=2, **ask, resume=5)
    client.send(b"abcd", id=2)
    client.ask(id=3, **ask, resume=5, resumed=1)
    assert client.answer_of(3) == {"id": 3, "at": 4}

    client.send(b"efgh", id=2, last=True)  # what the pipe of the lost one still had
    assert client.answer_of(2)["ok"] is False
    client.send(b"efgh", id=3, last=True)

    assert client.answer_of(3)["ok"] is True
    assert {name: (tmp_path / "tree" / name).read_bytes() for name in files} == files
    assert [each.name for each in tmp_path.iterdir()] == ["tree"]


@pytest.mark.parametrize("lost_at", [2, 3, 200_000, 300_003])
def test_a_tree_is_not_made_of_two_versions_of_its_files(client: Client, tmp_path, lost_at: int):
    files = {"a": b"abc", "d/large": os.urandom(300_000), "last": b"x"}
    other = {"a": b"xbd", "d/large": os.urandom(300_000), "last": b"x"}
    before, after = b"".join(files.values()), b"".join(other.values())
    ask = {"do": "put", "path": str(tmp_path / "tree"), "files": rows_of(other), "resume": 5}
    client.ask(id=2, **ask)
    client.send(before[:lost_at], id=2)
    client.lose()

    client.ask(id=3, **ask, resumed=1)
    answer = client.answer_of(3)
    if "error" not in answer:
        client.send(after[lost_at:], id=3, last=True)
        answer = client.answer_of(3)

    assert answer["ok"] is False
    assert list(tmp_path.iterdir()) == []
