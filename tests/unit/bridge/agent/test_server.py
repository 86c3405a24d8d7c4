"""The agent's loop in this process, its client a pair of pipes that may be slow to read."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import select
import sys
import time
import zlib
from typing import Any

import pytest

pytest.importorskip("fcntl")

from clusterfn.bridge.agent import disk_sync, downloads, parts, starts, uploads
from clusterfn.bridge.agent.files import CHUNK, sync_all
from clusterfn.bridge.agent.frames import TURN_S, pack
from clusterfn.bridge.agent.processes import LINGER_S
from clusterfn.bridge.agent.server import SILENCE_S
from tests.fakes.agent_client import Client
from tests.waiting import until


def test_what_a_program_printed_arrives_however_late_the_agent_looks(client: Client, tmp_path):
    go = tmp_path / "go"
    client.ask(id=2, do="run", argv=["sh", "-c", f"until [ -e '{go}' ]; do sleep 0.01; done; echo told"])
    until(lambda: client.turns(1) or client.agent.children)
    (pid,) = client.agent.children
    reader, writer = os.pipe()

    def stall(fd: int) -> None:
        """It ends after the agent has polled, and a disk then keeps the agent from reading for longer than it waits."""
        del client.agent.readers[fd]
        go.touch()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        client.agent.reap()
        time.sleep(LINGER_S + 0.1)

    client.agent.readers[reader] = stall
    os.write(writer, b"1")
    client.turns()
    for fd in (reader, writer):
        os.close(fd)

    ((told, out),) = client.inbox.feed(os.read(client.answers, 2**20))
    assert (told["rc"], bytes(out)) == (0, b"told\n")


PIECES = """
import os
def read(end):
    data = b""
    while not data.endswith(end):
        data += os.read(0, 65536)
    return data
begin = os.read(0, 10)
os.write(1, b"x" * 1024)
os.write(1, b"%dEND" % (begin + read(b"END")).count(b"a"))
os.write(1, b"-" * 1500)
os.read(0, 1)
os.write(1, b"x" * 1024)
os.write(1, read(b"go on"))
os.write(1, b".")
"""
PIPE = 32_768
LONG = 2_000_000  # a pipe takes less, so the rest of it waits while the program prints


def test_a_nudge_comes_between_two_chunks_and_never_inside_of_one(client: Client):
    came = bytearray()

    def read_until(end: bytes) -> bytes:
        """What has come up to there; drop it."""
        while end not in came:
            client.turns(1)
            with contextlib.suppress(BlockingIOError):
                for _, body in client.inbox.feed(os.read(client.answers, 2**20)):
                    came.extend(body)
        found, _, rest = bytes(came).partition(end)
        came[:] = rest
        return found

    client.ask(id=2, do="converse", argv=[sys.executable, "-c", PIECES], nudge="go on")
    client.turns()
    call = pack({"id": 2, "do": "chunk"}, b"a" * LONG + b"END")
    for at in range(0, len(call), PIPE):
        client.write(call[at : at + PIPE])
        client.turns(1)
    assert read_until(b"END") == b"x" * 1024 + b"%d" % LONG

    assert read_until(b"-" * 1500) == b"", "this is no full piece"
    client.write(pack({"id": 2, "do": "chunk"}, b"b"))
    assert read_until(b".") == b"x" * 1024 + b"go on"
    until(lambda: client.turns(1) or 2 not in client.agent.requests)


def test_other_requests_wait_for_few_of_many_small_files(client: Client, tmp_path, monkeypatch):
    (tmp_path / "small").write_bytes(b"a")
    opened, turn, of_turns = downloads.open_regular, client.agent.turn, [0]

    def slowly(path: str) -> Any:
        time.sleep(0.002)
        of_turns[-1] += 1
        return opened(path)

    monkeypatch.setattr(downloads, "open_regular", slowly)
    monkeypatch.setattr(client.agent, "turn", lambda: turn() or of_turns.append(0))
    for number in range(2, 202):
        client.ask(id=number, do="get", path=str(tmp_path / "small"))
    until(lambda: client.turns(1) or client.agent.frames is None)
    before = 200 - len(client.agent.requests)  # a busy machine takes many turns to hear of all
    client.ask(id=202, do="have", paths=[])
    client.listen()

    assert [header["id"] for header in client.heard].index(202) - before < 15
    assert sum(of_turns) == 200 and max(of_turns) <= 4
    assert len(client.heard) == 201, "each file is one frame"


def test_other_requests_do_not_wait_for_a_long_list(client: Client, tmp_path, monkeypatch):
    for number in range(20):
        (tmp_path / str(number)).touch()
    lstat = os.lstat

    def slowly(path: Any) -> os.stat_result:
        time.sleep(0.002)
        return lstat(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "lstat", slowly)
        patched.setattr(downloads.PatternHandler, "ENTRIES_A_TURN", 1)
        client.ask(id=2, do="have", path=str(tmp_path))
        client.turns(1)
        client.ask(id=3, do="have", paths=[])
        client.listen()

    assert [header["id"] for header in client.heard] == [3, 2]


def test_a_program_that_has_ended_does_not_keep_the_next_ones_input_from_it(client: Client):
    """The next one's pipe has the number that the first one's had, which was closed long before the first one ended."""

    def turn() -> int:
        client.agent.at(0, lambda: None)
        client.agent.turn()
        return len(client.agent.readers)

    idle = len(client.agent.readers)
    client.ask(id=2, do="run", argv=["true"])
    turn()
    assert until(lambda: turn() == idle)  # its output is read, and nobody has looked after it
    client.write(pack({"id": 3, "do": "run", "argv": ["cat"]}, b"said"))
    until(lambda: turn() > idle)
    client.agent.reap()
    answers: list[int] = []

    def both() -> bool:
        """Whether both have been answered; the turn that ends a request may leave its answer to the next one."""
        client.turns(1)
        if select.select([client.answers], [], [], 0)[0]:
            answers.extend(header["out"] for header, _ in client.inbox.feed(os.read(client.answers, 2**20)))
        return len(answers) >= 2

    assert until(both) and answers == [0, 4]


def test_requests_that_waited_for_the_same_start_in_turns(client: Client, monkeypatch):
    """A thousand jobs wait for the bridge, and their start must not keep the ends of the first ones from the client."""
    started: list[int] = []
    fork = os.fork

    def slow_fork() -> int:
        time.sleep(TURN_S)
        started.append(1)
        return fork()

    monkeypatch.setattr(os, "fork", slow_fork)
    client.ask(id=2, do="run", argv=["true"])
    for number in range(3, 23):
        client.ask(id=number, do="run", argv=["true"], after=[2])
    of_turns = []

    def turn() -> bool:
        before = len(started)
        client.turns(1)
        of_turns.append(len(started) - before)
        return len(started) == 21

    until(turn)

    assert max(of_turns) <= 2


def test_an_agent_leaves_after_20_minutes_without_a_word_and_not_before(client: Client):
    client.agent.last_received -= SILENCE_S - 60
    client.ask(id=2, do="have", paths=[])
    client.turns()
    client.agent.last_received -= SILENCE_S - 60
    client.turns(1)
    before, soon = client.agent.open, client.agent.seconds_until_due()
    left = client.agent.last_received + SILENCE_S - time.monotonic()
    client.agent.last_received -= 60
    wakes = client.agent.seconds_until_due()
    client.turns(1)

    assert SILENCE_S == 20 * 60
    assert (before, wakes, client.agent.open) == (True, 0, False)
    assert left <= soon <= 60


def test_a_folder_on_its_way_is_touched_while_its_client_is_heard_and_no_longer(client: Client, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "TOUCH_S", 0.0)
    client.ask(id=2, do="put", path=str(tmp_path / "job"), files=[["spec", 1, 0o600]])
    client.turns(1)
    (part,) = tmp_path.glob("job.part-*")

    os.utime(part, (1, 1))
    client.turns(2)
    heard = part.stat().st_mtime
    client.agent.last_received -= uploads.RECENT_S
    os.utime(part, (1, 1))
    client.turns(2)

    assert heard > 1 == part.stat().st_mtime


def test_a_root_of_another_user_is_refused(client: Client, tmp_path, monkeypatch):
    owner = os.geteuid()
    (tmp_path / "root").mkdir()
    monkeypatch.setattr("clusterfn.bridge.agent.facts.os.geteuid", lambda: owner + 1)

    client.ask(id=1, do="hello", root=str(tmp_path / "root"), have=[])

    error = client.answer_of(1)["error"]
    assert error["kind"] == "refused"
    assert f"belongs to {pwd.getpwuid(owner).pw_name}" in error["message"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is synced and renamed, in order."""
    seen: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        seen.append(("sync", os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    def renamed(source: str, target: str) -> None:
        seen.append(("rename", target))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(disk_sync, "SLOW_S", 600.0)  # however busy it is: a child's steps would not be seen here
    return seen


def test_a_folder_that_must_outlive_a_power_cut_is_on_the_disk_with_all_names_when_that_is_said(
    client: Client, tmp_path, steps: list[tuple[str, str]]
):
    client.ask(id=1, do="put", path=str(tmp_path / "jobs" / "one"), files=[["a", 1, 0o600], ["below/b", 1, 0o600]])
    client.send(b"ab", id=1, last=True)

    assert client.answer_of(1)["ok"] is True
    at = steps.index(("rename", str(tmp_path / "jobs" / "one")))
    before, after = {path for _, path in steps[:at]}, [path for _, path in steps[at + 1 :]]
    aside = min(before, key=len)
    assert before == {aside, aside + "/a", aside + "/below", aside + "/below/b"}
    assert after == [str(tmp_path / "jobs"), str(tmp_path)]  # the new folder, and that in which it is new


def test_a_file_that_must_outlive_a_power_cut_is_on_the_disk_with_its_name(client, tmp_path, steps):
    client.ask(id=1, do="put", path=str(tmp_path / "file"), size=1)
    client.send(b"a", id=1, last=True)

    assert steps[-2:] == [("rename", str(tmp_path / "file")), ("sync", str(tmp_path))]


def test_a_disk_that_syncs_slowly_stops_no_other_request_and_syncs_for_many_uploads_at_once(
    client: Client, tmp_path, monkeypatch
):
    forks: list[int] = []
    fork, fsync = os.fork, os.fsync
    # While this file exists the disk takes nothing, however long a busy machine needs for the requests.
    held = tmp_path / "held"
    monkeypatch.setattr(os, "fork", lambda: (forks.append(1), fork())[1])
    monkeypatch.setattr(os, "fsync", lambda fd: (time.sleep(0.2), until(lambda: not held.exists()), fsync(fd))[2])
    client.ask(id=1, do="put", path=str(tmp_path / "jobs" / "first"), size=1)
    client.send(b"a", id=1, last=True)
    until(lambda: client.turns(1) or not client.agent.requests)
    assert client.agent.disk_sync.is_slow

    held.touch()
    for number in range(10, 30):
        client.ask(id=number, do="put", path=str(tmp_path / "jobs" / str(number)), files=[["a", 1, 0o600]])
        client.write(pack({"id": number, "do": "chunk", "last": True}, b"a"))
    client.ask(id=99, do="have", paths=[])
    until(lambda: client.turns(1) or 99 not in client.agent.requests and client.agent.frames is None)
    assert len(client.agent.requests) == 20, "the ping is answered before any of them is on the disk"
    held.unlink()
    until(lambda: client.turns(1) or not client.agent.requests)

    client.listen()
    ended = {header["id"]: header["ok"] for header in client.heard if header.get("end") and header["id"] >= 10}
    assert ended == dict.fromkeys([*range(10, 30), 99], True)
    assert all((tmp_path / "jobs" / str(number) / "a").read_bytes() == b"a" for number in range(10, 30))
    assert len(forks) <= 8, "two flushes for each of the twenty, one after another, would be forty"


def test_a_child_that_flushes_to_a_slow_disk_holds_no_pipe_of_the_agent(client: Client, tmp_path, monkeypatch):
    """Else the client would not see that the agent has ended."""

    def report(paths: list[str], *how: Any) -> None:
        held = set(os.listdir("/dev/fd")) & {"1", "2"}  # the listing itself gets the number 0
        (tmp_path / "held").write_text(f"{sorted(held)}")

    monkeypatch.setattr(disk_sync, "sync_all", report)
    client.agent.disk_sync.is_slow = True
    client.ask(id=1, do="put", path=str(tmp_path / "file"), size=1)
    client.write(pack({"id": 1, "do": "chunk", "last": True}, b"a"))
    until(lambda: client.turns(1) or not client.agent.requests)

    assert (tmp_path / "held").read_text() == "[]"


def test_an_upload_that_a_slow_disk_refuses_fails(client: Client, tmp_path, monkeypatch):
    def fails(paths: list[str], *how: Any) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(disk_sync, "sync_all", fails)
    client.agent.disk_sync.is_slow = True
    client.ask(id=10, do="put", path=str(tmp_path / "bad"), files=[["a", 1, 0o600]])
    client.write(pack({"id": 10, "do": "chunk", "last": True}, b"a"))
    until(lambda: client.turns(1) or not client.agent.requests)

    client.listen()
    assert {header["id"]: header["ok"] for header in client.heard} == {10: False}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("do", ["run", "spawn", "converse"])
def test_a_program_for_which_no_descriptors_are_left_takes_none(client: Client, tmp_path, monkeypatch, do: str):
    monkeypatch.setattr(starts, "PATIENCE_S", 0.0)
    resource = pytest.importorskip("resource")
    before, limits = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 100, limits[1]))
    taken: list[int] = []
    try:
        for number in range(2, 8):
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            for _ in range(number):
                os.close(taken.pop())
            client.ask(id=number, do=do, argv=["true"], cwd="/", log=str(tmp_path / "log"))
            until(lambda number=number: client.turns(1) or number not in client.agent.requests)
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    # What other tests have left may be collected meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before


def test_where_no_restart_can_be_seen_an_upload_begins_again(client: Client, tmp_path, monkeypatch):
    monkeypatch.setattr(uploads, "boot_id", lambda: "")
    ask = {"do": "put", "path": str(tmp_path / "b"), "size": 9, "resume": 77}
    client.ask(id=2, **ask)
    client.send(b"abc", id=2)
    client.lose()
    assert list(tmp_path.iterdir()) == []

    client.ask(id=3, **ask, resumed=1)
    assert client.answer_of(3)["at"] == 0


def test_a_large_part_is_read_back_while_others_are_answered(client: Client, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "READ_BACK_A_TURN", CHUNK)
    data = os.urandom(10 * CHUNK + 5)
    ask = {"do": "put", "path": str(tmp_path / "b"), "size": len(data), "crc": zlib.crc32(data), "resume": 77}
    client.ask(id=2, **ask)
    client.send(data[:-5], id=2)
    client.lose()
    client.ask(id=3, **ask, resumed=1)
    client.ask(id=4, do="have", paths=[])

    assert client.answer_of(4)["ok"] is True
    assert client.answer_of(3) == {"id": 3, "at": len(data) - 5}
    client.send(data[-5:], id=3, last=True)
    assert client.answer_of(3)["ok"] is True


def test_files_reach_the_disk_where_no_thread_can_be_started(tmp_path, monkeypatch):
    import threading

    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))

    def no_thread(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    paths = [tmp_path / str(number) for number in range(30)]
    for path in paths:
        path.touch()

    sync_all([str(path) for path in paths])

    assert sorted(synced) == sorted(path.stat().st_ino for path in paths)
