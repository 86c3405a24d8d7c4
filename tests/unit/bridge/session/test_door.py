"""The server of a session: calls through its socket and by their folders, runners that die, what a lost client has."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge.agent.frames import Inbox, pack
from clusterfn.calls import payload
from clusterfn.hosts import serialization
from tests.waiting import until

SERVE = (
    "import json, sys; from clusterfn.hosts import serialization; serialization.part('container'); "
    "from clusterfn.bridge.session import serve; "
    "print(json.dumps(serve.serve(sys.argv[1], json.loads(sys.argv[2]))))"
)
SPEC: dict[str, Any] = {
    "id": "7f3a000011112222", "scheduler": "bare", "secrets": [], "cwd": None, "outputs": [], "sys_path": [],
    "log_limit_bytes": 1 << 20, "grace_s": 5.0,
    "resources": {"memory_bytes": None, "time_s": None, "gpus": 0, "cores": 1},
}  # fmt: skip


class Server:
    """A session's server as a process, without a supervisor."""

    def __init__(self, folder: Path, workers: int = 1, idle_s: float = 600.0, gpus: int = 0, **env: str) -> None:
        self.folder = folder
        self.sockets: list[socket.socket] = []
        serving = {"idle_s": idle_s, "caller": list(sys.version_info[:2]), "workers": workers}
        resources = {**SPEC["resources"], "gpus": gpus}
        spec = {**SPEC, "root": str(folder / "root"), "session": serving, "resources": resources}
        argv = [sys.executable, "-c", SERVE, str(folder), json.dumps(spec)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **env})
        until(lambda: (folder / "door.json").exists())
        self.address = json.loads((folder / "door.json").read_text())["socket"]

    def close(self) -> dict[str, Any]:
        """Close it as a client does; the session's value."""
        (self.folder / "calls" / "close").touch()
        out, _ = self.process.communicate(timeout=300)
        return dict(json.loads(out))

    def outcome(self, number: int) -> Path:
        return self.folder / "calls" / str(number) / "attempts" / "1" / "outcome.json"


class Client:
    """A client that speaks frames; the frames that have come."""

    def __init__(self, server: Server) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(300)
        server.sockets.append(self.sock)
        self.sock.connect(server.address)
        self.inbox = Inbox()
        self.frames: list[tuple[dict[str, Any], bytes]] = []
        self.sock.sendall(pack({"what": "hello"}))
        self.next("welcome")

    def send(self, number: int, function: Callable[..., Any], *args: Any, live: bool = True) -> None:
        data = payload.pack(function, args, {}).data
        self.sock.sendall(pack({"what": "call", "n": number, "live": live, "sys_path": []}, data))

    def next(self, what: str, number: int | None = None) -> tuple[dict[str, Any], bytes]:
        """Wait for a frame of this kind, of this call; drop it and keep those before it."""
        while True:
            for index, (header, _) in enumerate(self.frames):
                if header["what"] == what and number in (None, header.get("n")):
                    return self.frames.pop(index)
            data = self.sock.recv(1 << 20)
            assert data, f"the server closed the connection before {what!r} of {number}: {self.frames}"
            self.frames += self.inbox.feed(data)

    def printed(self) -> dict[tuple[str, int], bytes]:
        """The output that has come, by its stream and call."""
        found: dict[tuple[str, int], bytes] = {}
        for told, data in self.frames:
            if told["what"] in ("stdout", "stderr"):
                key = told["what"], told["n"]
                found[key] = found.get(key, b"") + data
        return found

    def end(self, number: int) -> tuple[dict[str, Any], Any]:
        """The outcome of a call, and its value if that came with it."""
        header, body = self.next("end", number)
        first, last = header["events"], header["events"] + header["outcome"]
        outcome = json.loads(body[first:last])
        found = outcome.get("value") if header["has_value"] else None
        return outcome, value_of(body[last:]) if found else None


def value_of(data: bytes) -> Any:
    return serialization.part("container").loads(bytearray(data))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def run(**options: Any) -> Server:
        folder = tmp_path / f"job{len(started)}"
        folder.mkdir()
        started.append(Server(folder, **options))
        return started[-1]

    yield run
    for server in started:
        for sock in server.sockets:
            sock.close()
        server.process.kill()
        server.process.communicate()


def of_main(function: Callable[..., Any]) -> Callable[..., Any]:
    """Travels by value, as a function of a script does."""
    function.__module__ = "__main__"
    return function


@of_main
def speak(word: str) -> tuple[int, int]:
    import os
    import sys

    print(word)
    print(word.upper(), file=sys.stderr)
    return os.getpid(), os.getppid()


@of_main
def wait_for(path: str) -> str:
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.02)
    return "through"


@of_main
def leave_and_wait(path: str) -> None:
    import os
    import subprocess
    import time
    from pathlib import Path

    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(path + ".new").write_text(f"{child.pid} {os.getppid()}")
    Path(path + ".new").rename(path)
    time.sleep(600)


def test_a_call_goes_through_the_socket_and_its_output_and_value_come_back(start: Callable[..., Server]):
    server = start()
    client = Client(server)

    client.send(1, speak, "one")
    client.send(2, speak, "two", live=False)
    first, second = client.end(1), client.end(2)

    assert first[0]["kind"] == second[0]["kind"] == "returned"
    assert first[1][0] != second[1][0], "a process of its own for each"
    assert first[1][1] == second[1][1], "forked from one that stays"
    assert client.printed() == {("stdout", 1): b"one\n", ("stderr", 1): b"ONE\n"}
    assert json.loads(server.outcome(1).read_text())["kind"] == "returned", "the files are the record"
    assert (server.folder / "calls" / "2" / "attempts" / "1" / "stdout").read_text() == "two\n"
    assert server.close() == {"calls": 2, "why": "closed", "loaded beforehand": []}


def test_calls_by_folder_and_through_the_socket_run_in_the_order_of_their_numbers(
    start: Callable[..., Server], tmp_path: Path
):
    server = start()
    client = Client(server)

    client.send(2, speak, "second")
    assert client.next("taken")[0]["taken"] == 2
    assert not server.outcome(2).exists(), "the first has not come yet"
    aside = tmp_path / "aside"
    aside.mkdir()
    (aside / "payload.pkl").write_bytes(payload.pack(wait_for, (str(tmp_path / "gate"),), {}).data)
    (aside / "call.json").write_text('{"sys_path": []}')
    aside.rename(server.folder / "calls" / "1")
    until(lambda: (server.folder / "calls" / "1" / "taken").exists())
    assert not (server.folder / "calls" / "2" / "taken").exists()
    (tmp_path / "gate").touch()

    assert client.end(2)[0]["kind"] == "returned"
    assert json.loads(server.outcome(1).read_text())["kind"] == "returned"


def test_a_call_that_comes_twice_runs_once(start: Callable[..., Server], tmp_path: Path):
    server = start()
    client = Client(server)

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


def test_a_call_whose_client_goes_away_in_its_midst_leaves_everything_in_its_files(
    start: Callable[..., Server], tmp_path: Path
):
    server = start()
    client = Client(server)
    client.send(1, wait_for, str(tmp_path / "gate"))
    client.send(2, speak, "later")
    client.next("taken")
    client.sock.close()
    (tmp_path / "gate").touch()

    until(lambda: server.outcome(2).exists())
    assert value_of((server.outcome(1).parent / "value.pkl").read_bytes()) == "through"
    assert (server.outcome(2).parent / "stdout").read_text() == "later\n"
    assert Client(server).next is not None, "another connection is taken"


def test_a_client_that_does_not_read_holds_up_no_call(start: Callable[..., Server]):
    server = start()
    client = Client(server)

    @of_main
    def shout() -> None:
        print("x" * (900 << 10))

    for number in range(1, 41):
        client.send(number, shout)

    until(lambda: server.outcome(40).exists())
    assert all((server.outcome(number).parent / "stdout").stat().st_size == (900 << 10) + 1 for number in (1, 40))
    came = iter(lambda: len(client.sock.recv(1 << 20)), 0)
    assert sum(came) < 35 << 20, "what it does not read is not kept for ever"


def test_a_large_value_stays_in_its_file(start: Callable[..., Server]):
    client = Client(start())

    client.send(1, bytes, 2 << 20)
    header, _ = client.next("end", 1)

    assert not header["has_value"]


def test_a_runner_that_dies_fails_its_call_by_name_and_is_replaced(start: Callable[..., Server], tmp_path: Path):
    server = start()
    client = Client(server)
    client.send(1, leave_and_wait, str(tmp_path / "pids"))
    client.send(2, speak, "next")
    until(lambda: (tmp_path / "pids").exists())
    left, runner = map(int, (tmp_path / "pids").read_text().split())

    os.kill(runner, signal.SIGKILL)
    failed, (after, (_, other)) = client.end(1)[0], client.end(2)

    assert failed["kind"] == "lost"
    assert failed["message"] == "worker 1 of the session, which ran the call, was killed by SIGKILL"
    assert json.loads(server.outcome(1).read_text()) == failed
    assert after["kind"] == "returned" and other != runner
    assert not Path(f"/proc/{left}").exists(), "what the call had started has ended with it"
    assert server.close()["why"] == "closed"


def test_a_process_that_was_forked_ahead_and_killed_costs_no_call(start: Callable[..., Server]):
    server = start()
    client = Client(server)
    client.send(1, speak, "one")
    own, runner = client.end(1)[1]
    children = Path(f"/proc/{runner}/task/{runner}/children")
    next_one = until(lambda: [pid for pid in children.read_text().split() if int(pid) != own])

    os.kill(int(next_one[0]), signal.SIGKILL)
    until(lambda: ") Z " in Path(f"/proc/{next_one[0]}/stat").read_text())  # else it may take the call and die with it
    client.send(2, speak, "two")

    assert client.end(2)[1][1] == runner


def test_workers_run_calls_beside_one_another_each_with_its_gpu(start: Callable[..., Server], tmp_path: Path):
    server = start(workers=3, gpus=3, CUDA_VISIBLE_DEVICES="GPU-a,GPU-b,GPU-c")
    client = Client(server)

    @of_main
    def meet(folder: str, name: str) -> str:
        import os
        import time
        from pathlib import Path

        Path(folder, name).touch()
        while len(os.listdir(folder)) < 3:
            time.sleep(0.02)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    (tmp_path / "met").mkdir()
    for number in (1, 2, 3):
        client.send(number, meet, str(tmp_path / "met"), str(number))
    gpus = sorted(client.end(number)[1] for number in (1, 2, 3))

    assert gpus == ["GPU-a", "GPU-b", "GPU-c"]
    assert server.close()["calls"] == 3


def test_random_numbers_and_lines_that_wait_for_a_newline_are_each_calls_own(start: Callable[..., Server]):
    client = Client(start())

    @of_main
    def draw() -> int:
        import random

        print("half a line", end="")
        return random.getrandbits(64)

    for number in range(1, 4):
        client.send(number, draw)
    drawn = {client.end(number)[1] for number in range(1, 4)}

    assert len(drawn) == 3
    assert client.printed() == {("stdout", number): b"half a line" for number in range(1, 4)}


def test_an_idle_session_ends_and_removes_its_socket(start: Callable[..., Server]):
    server = start(idle_s=0.5)

    out, _ = server.process.communicate(timeout=300)

    assert json.loads(out)["why"] == "idle"
    assert not Path(server.address).exists()


def test_what_is_no_frame_ends_its_connection_and_nothing_else(start: Callable[..., Server]):
    server = start()
    odd = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    odd.settimeout(300)
    server.sockets.append(odd)
    odd.connect(server.address)
    odd.sendall(b"\0\0\0\4" + bytes(8) + b"none")

    assert odd.recv(100) == b""
    client = Client(server)
    client.send(1, abs, -1)
    assert client.end(1)[1] == 1
