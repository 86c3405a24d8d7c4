"""The server of a session: calls through its socket and by their folders, runners that die, what a lost client has."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import descendants_of
from tests.unit.bridge.session.serving import Client, Server, frame, of_main, payload_of
from tests.waiting import until


@of_main
def speak(word: str) -> tuple[int, int]:
    print(word)
    print(word.upper(), file=sys.stderr)
    return os.getpid(), os.getppid()


@of_main
def crash() -> None:
    import signal

    signal.raise_signal(signal.SIGSEGV)


@of_main
def wait_for(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.02)
    return "through"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shows who has a socket")
def test_no_other_process_of_a_session_keeps_its_socket_open(start: Callable[..., Server]):
    """A client that connects at the end of the session would wait for that process, too."""
    server = start(workers=2)
    sockets = Path("/proc/net/unix").read_text().splitlines()
    (listens,) = [f"socket:[{line.split()[6]}]" for line in sockets if line.endswith(f" {server.address}.new")]

    def has_it(pid: int) -> bool:
        with contextlib.suppress(OSError):  # a process or a descriptor that ends meanwhile
            return any(os.readlink(fd) == listens for fd in Path(f"/proc/{pid}/fd").iterdir())
        return False

    client = Client(server)
    client.send(1, speak, "word")
    client.end(1)

    own = server.process.pid
    until(lambda: len(descendants_of(own)) >= 3)
    until(lambda: [pid for pid in [own, *descendants_of(own)] if has_it(pid)] == [own])


def test_the_stack_of_a_crash_is_in_the_output_of_its_call(client: Client):
    for number in (1, 2):
        client.send(number, crash)

    assert [client.end(number)[0]["kind"] for number in (1, 2)] == ["signal"] * 2
    assert [client.printed()["stderr", number].count(b" in crash\n") for number in (1, 2)] == [1, 1]


def test_calls_by_folder_and_through_the_socket_run_in_the_order_of_their_numbers(server, client, tmp_path):
    client.send(2, speak, "second")
    assert client.next("taken")[0]["taken"] == 2
    assert not server.outcome(2).exists(), "the first has not come yet"
    aside = tmp_path / "aside"
    aside.mkdir()
    (aside / "payload.pkl").write_bytes(payload_of(wait_for, str(tmp_path / "gate")))
    (aside / "call.json").write_text('{"sys_path": []}')
    aside.rename(server.folder / "calls" / "1")
    until(lambda: (server.folder / "calls" / "1" / "taken").exists())
    assert not (server.folder / "calls" / "2" / "taken").exists()
    (tmp_path / "gate").touch()

    assert client.end(2)[0]["kind"] == "returned"
    assert json.loads(server.outcome(1).read_text())["kind"] == "returned"


@of_main
def kill_the_runner(touched: str = os.devnull) -> None:
    import signal

    Path(touched).touch()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


# Once the gate is there, two hours have passed.
TWO_HOURS = """
import os
from clusterfn.bridge.supervisor.limits import clock
now = clock.now
clock.now = lambda: now() + 7200.0 * os.path.exists({gate!r})
"""


def test_a_session_whose_worker_dies_in_a_long_call_is_idle_only_from_then_on(start: Callable[..., Server], tmp_path):
    gate = str(tmp_path / "gate")
    client = Client(start(before=TWO_HOURS.format(gate=gate)))

    client.send(1, kill_the_runner, gate)
    assert client.end(1)[0]["kind"] == "lost"
    client.send(2, abs, -2)

    assert client.end(2)[1] == 2


@of_main
def note_and_stay(path: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(600)


def test_a_call_that_an_earlier_start_has_taken_does_not_run_again(start: Callable[..., Server], tmp_path: Path):
    pids = tmp_path / "pids"
    server = start()
    Client(server).send(1, note_and_stay, str(pids))
    until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    server.process.kill()
    server.process.wait()
    (server.folder / "door.json").unlink()

    client = Client(start(server.folder))
    client.send(2, abs, -2)

    assert client.end(2)[1] == 2
    assert json.loads(server.outcome(1).read_text())["message"] == "the session was restarted while the call ran"
    assert len(pids.read_text().splitlines()) == 1


def test_a_call_that_comes_twice_runs_once(server: Server, client: Client, tmp_path: Path):
    @of_main
    def count(path: str) -> None:
        from pathlib import Path

        with Path(path).open("a") as file:
            file.write("ran\n")

    for _ in range(2):
        client.send(1, count, str(tmp_path / "runs"))
    client.end(1)
    client.send(1, count, str(tmp_path / "runs"))
    client.send(2, abs, -2)

    assert client.end(2)[1] == 2
    assert (tmp_path / "runs").read_text() == "ran\n"
    assert server.close()["calls"] == 2


def test_a_client_that_does_not_read_holds_up_no_call(server: Server, client: Client):
    @of_main
    def shout() -> None:
        print("x" * (900 << 10))

    for number in range(1, 41):
        client.send(number, shout)

    until(lambda: server.outcome(40).exists())
    assert all((server.outcome(number).parent / "stdout").stat().st_size == (900 << 10) + 1 for number in (1, 40))
    came = iter(lambda: len(client.sock.recv(1 << 20)), 0)
    assert sum(came) < 35 << 20, "what it does not read is not kept for ever"


@pytest.mark.parametrize("answer_pieces", [True, False])
def test_a_piece_of_a_call_is_answered_at_once_only_where_the_client_asks_for_it(client: Client, answer_pieces: bool):
    client.sock.sendall(frame({"what": "hello", "answer_pieces": answer_pieces}))
    client.next("welcome")
    call = frame({"what": "call", "n": 1, "live": True, "sys_path": []}, payload_of(speak, "one"))

    client.sock.sendall(call[:100])
    client.sock.settimeout(300 if answer_pieces else 0.3)
    if answer_pieces:
        assert client.next("taken")[0]["taken"] == 0, "it is not whole yet"
    else:
        with pytest.raises(socket.timeout):
            client.next("taken")
    client.sock.settimeout(300)
    client.sock.sendall(call[100:] + frame({"what": "nudge"}))

    assert client.end(1)[0]["kind"] == "returned"


@of_main
def remove_folder_and_kill_the_runner(folder: str) -> None:
    import shutil
    import signal

    while os.path.exists(folder):  # the server may write into it meanwhile
        shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def test_the_end_of_a_call_that_has_removed_its_folder_is_on_the_disk_even_if_its_worker_dies(server, client):
    client.send(1, remove_folder_and_kill_the_runner, str(server.folder / "calls" / "1"))

    assert client.end(1)[0]["kind"] == "lost"
    assert json.loads(server.outcome(1).read_text())["kind"] == "lost"
    client.send(2, abs, -1)
    assert client.end(2)[1] == 1


def test_a_damaged_call_json_fails_its_call_alone(server: Server, tmp_path: Path):
    aside = tmp_path / "aside"
    aside.mkdir()
    (aside / "payload.pkl").write_bytes(b"")
    (aside / "call.json").write_text('{"sys_pa')
    aside.rename(server.folder / "calls" / "1")
    until(lambda: server.outcome(1).exists())
    client = Client(server)
    client.send(2, abs, -2)

    assert client.end(2)[1] == 2
    assert "its call.json is damaged" in json.loads(server.outcome(1).read_text())["message"]


NO_NEW_FILES = """
import errno, os

make = os.open

def new(path, flags, *rest, **more):
    name = os.path.basename(os.fsdecode(path)) if not isinstance(path, int) else ""
    if os.path.exists({mark!r}) and flags & os.O_EXCL and name.startswith((".outcome", ".reserve")):
        raise OSError(errno.ENOSPC, "no space left on device")
    return make(path, flags, *rest, **more)

os.open = new
"""


def test_an_outcome_that_finds_no_room_takes_the_place_that_was_reserved_for_one(start, tmp_path):
    server = start(before=NO_NEW_FILES.format(mark=str(tmp_path / "full")))
    client = Client(server)
    client.send(1, speak, "one")
    client.end(1)

    (tmp_path / "full").touch()
    client.send(2, speak, "two")
    in_reserve = client.end(2)[0]
    client.send(3, speak, "three")
    refused = client.end(3)[0]
    (tmp_path / "full").unlink()
    client.send(4, speak, "four")

    assert in_reserve["kind"] == "returned" and json.loads(server.outcome(2).read_text()) == in_reserve
    assert (refused["kind"], refused["message"]) == ("host_disk", "the disk of the host is full")
    assert client.end(4)[0]["kind"] == "returned"


NO_LINKS = """
import os

def link(*_, **__):
    raise PermissionError(1, "Operation not permitted")

os.link = link
"""


@pytest.mark.parametrize("before", ["", NO_LINKS])
def test_calls_are_taken_by_a_link_or_where_there_is_none_by_a_folder(before: str, start: Callable[..., Server]):
    server = start(before=before)
    client = Client(server)
    for number in (1, 2):
        client.send(number, speak, "x")
        assert client.end(number)[0]["kind"] == "returned"

    client.send(3, abs, -1, facts={"sys_path": ["/another"]})
    client.end(3)
    server.close()

    second, third = (server.folder / "calls" / str(number) for number in (2, 3))
    assert (second / "taken").is_dir() == bool(before)
    assert second.joinpath("call.json").stat().st_nlink == (1 if before else 2)
    told = [json.loads(each.joinpath("call.json").read_text()) for each in (second, third)]
    assert told == [{"sys_path": []}, {"sys_path": ["/another"]}]
    printed = [sorted(path.name for path in each.glob("std*")) for each in (second, third)]
    assert printed == [["stderr", "stdout"], []]
    assert not list(server.folder.glob("calls/.reserve*"))


@of_main
def speak_without_a_folder() -> str:
    import shutil

    folder = os.path.dirname(os.getcwd())
    while os.path.exists(folder):  # its session may write to it meanwhile
        shutil.rmtree(folder, ignore_errors=True)
    for number in range(3):
        print("line", number, flush=True)
    return "done"


def test_a_call_that_removes_its_folder_and_prints_keeps_its_value_and_all_that_it_printed(server, client):
    client.send(1, speak_without_a_folder)
    outcome, value = client.end(1)

    folder = server.outcome(1).parent
    assert (outcome["kind"], value) == ("returned", "done")
    assert (folder / "stdout").read_text() == "line 0\nline 1\nline 2\n"
    assert json.loads((folder / "outcome.json").read_text()) == outcome
    assert "".join(body.decode() for header, body in client.frames if header["what"] == "stdout").count("line") == 3


def test_what_is_no_frame_ends_its_connection_and_nothing_else(server: Server):
    odd = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    odd.settimeout(300)
    server.sockets.append(odd)
    odd.connect(server.address)
    odd.sendall(b"\0\0\0\4" + bytes(8) + b"none")

    assert odd.recv(100) == b""
    client = Client(server)
    client.send(1, abs, -1)
    assert client.end(1)[1] == 1


def test_a_call_says_that_it_runs_before_what_it_prints(server: Server, client: Client):
    def say() -> None:
        print("begun", flush=True)
        for _ in range(3000):
            if any('"running"' in path.read_text() for path in Path("..").glob("events.jsonl")):
                break
            time.sleep(0.02)

    client.send(1, of_main(say))
    assert client.end(1)[0]["kind"] == "returned"
    before = [header["what"] for header, _ in client.frames if header.get("n") == 1]
    assert before.index("events") < before.index("stdout")
    events = [json.loads(line) for line in server.outcome(1).with_name("events.jsonl").read_text().splitlines()]
    assert [event["n"] for event in events] == list(range(1, len(events) + 1))
    assert [event["event"] for event in events if event["event"] != "stage"] == ["starting", "running"]
