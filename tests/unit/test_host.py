"""The agent's client against a host in memory: answers, errors, order, reconnects, forks."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterfn import host as hosts
from clusterfn.errors import AuthenticationError, HostDiskFull, HostError, HostKeyError, Unreachable
from clusterfn.host import HostConnection
from clusterfn.hostlink import boot, link
from clusterfn.spec import Host
from tests.contract.conftest import until
from tests.fakes.transport import FakeTransport, Far, Handler, agent

HOST = Host("lab8", "lab8", "bare", "clusterfn.yml:3")
WAIT_S = 10.0
OK = {"end": True, "ok": True}


def answering(request: dict[str, Any], body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Everything is well, at once."""
    if request["do"] != "chunk" or request.get("last"):
        yield OK, b""


def silent(request: dict[str, Any], body: bytes) -> Iterable[tuple[dict[str, Any], bytes]]:
    return ()


def failing(kind: str, **more: Any) -> Handler:
    error = {"kind": kind, "message": "No such thing", "path": "/p", **more}
    return lambda request, body: [({"end": True, "ok": False, "error": error}, b"")]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Handler], tuple[HostConnection, FakeTransport]]]:
    """A connection to a fake host with this handler, and its transport. Reconnecting pauses are short."""
    monkeypatch.setattr(link, "PAUSE_FIRST_S", 0.01)
    opened: list[HostConnection] = []

    def make(handler: Handler) -> tuple[HostConnection, FakeTransport]:
        transport = FakeTransport(agent(handler))
        opened.append(HostConnection(HOST, transport))
        return opened[-1], transport

    yield make
    for connection in opened:
        connection.close()


def hold_back(transport: FakeTransport) -> threading.Event:
    """Nothing is written to the host until the event is set."""
    gate, stream = threading.Event(), transport.streams[0]
    write = stream.write
    stream.write = lambda data: write(data) if gate.wait(WAIT_S) else None  # type: ignore[method-assign]
    return gate


Connected = Callable[[Handler], tuple[HostConnection, FakeTransport]]


def test_facts_come_with_the_connection(connected: Connected) -> None:
    connection, transport = connected(answering)

    assert (connection.facts.root, connection.facts.version) == ("/home/fake/.clusterfn", (3, 6, 8))
    assert transport.commands == [boot.COMMAND]


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("full", HostDiskFull, "No space is left on lab8 for /p"),
        ("denied", HostError, "/p on lab8 may not be used"),
        ("missing", HostError, "/p does not exist on lab8"),
        ("timeout", HostError, "lab8 did not do what was asked"),
        ("skipped", HostError, "No such thing"),
        ("lost", HostError, "No such thing"),
    ],
)
def test_an_error_frame_is_a_typed_error(connected: Connected, kind: str, error: type[HostError], words: str) -> None:
    connection, _ = connected(failing(kind, free=0, needed=2**20))

    with pytest.raises(error, match=words) as caught:
        connection.ping().result(WAIT_S)
    assert (caught.value.host, caught.value.kind) == ("lab8", kind)  # type: ignore[attr-defined]


def test_a_full_disk_says_how_much(connected: Connected) -> None:
    connection, _ = connected(failing("full", free=0, needed=2**20))

    error = connection.put("/p", b"x").exception(WAIT_S)

    assert isinstance(error, HostDiskFull)
    assert error.evidence == ("No such thing", "0.0 MB free, 1.0 MB needed")


@pytest.mark.parametrize("ask", ["result", "exception"])
def test_a_reply_that_does_not_come_says_who_did_not_answer_what_and_goes_on(connected: Connected, ask: str) -> None:
    connection, _ = connected(silent)
    reply = connection.run(["sinfo", "--noheader"])

    with pytest.raises(Unreachable, match="lab8 did not answer `run sinfo` within 0.01 s") as caught:
        getattr(reply, ask)(0.01)
    assert (reply.done(), caught.value.retryable, caught.value.host) == (False, True, "lab8")


def test_what_was_asked_is_told_of_files_and_of_ends_too(connected: Connected) -> None:
    connection, _ = connected(silent)

    with pytest.raises(Unreachable, match="`follow /p`"):
        connection.follow("/p", print).result(0)
    with pytest.raises(Unreachable, match="`the end of spawn job.sh`"):
        connection.spawn(["job.sh"], "/", "/log").exited.result(0)


def test_cancel_tells_the_host_to_stop(connected: Connected) -> None:
    connection, transport = connected(silent)
    reply = connection.follow("/p", print)
    reply.cancel()

    with pytest.raises(concurrent.futures.CancelledError):
        reply.result(WAIT_S)
    stop = until(lambda: [asked for asked in transport.program.asked if asked["do"] == "stop"])  # type: ignore[attr-defined]
    assert stop[0]["target"] == reply.id


def test_what_comes_after_names_only_what_is_still_open(connected: Connected) -> None:
    connection, transport = connected(lambda request, body: [(OK, b"")] if request["do"] == "ping" else [])
    ended, waiting = connection.ping(), connection.have(["/a"])
    ended.result(WAIT_S)

    connection.run(["x"], after=[ended, waiting])

    run = until(lambda: [asked for asked in transport.program.asked if asked["do"] == "run"])[0]  # type: ignore[attr-defined]
    assert run["after"] == [waiting.id]


def test_small_requests_overtake_the_chunks_of_two_uploads_that_take_turns(connected: Connected) -> None:
    connection, transport = connected(answering)
    gate = hold_back(transport)
    first = connection.put("/a", bytes(2**20))
    second = connection.put("/b", bytes(2**20))
    ping = connection.ping()
    gate.set()
    for reply in (first, second, ping):
        reply.result(WAIT_S)

    asked = [(header["do"], header["id"]) for header in transport.program.asked]  # type: ignore[attr-defined]
    chunks = [number for do, number in asked if do == "chunk"]
    assert asked.index(("ping", ping.id)) < len(asked) - 4
    assert chunks[1:7] in ([first.id, second.id] * 3, [second.id, first.id] * 3)


def test_an_error_of_the_callback_ends_its_request_and_no_other(connected: Connected) -> None:
    connection, _ = connected(
        lambda request, body: [({"offset": 0}, b"x")] if request["do"] == "follow" else [(OK, b"")]
    )

    def broken(data: bytes) -> None:
        raise ZeroDivisionError

    reply = connection.follow("/p", broken)

    assert isinstance(reply.exception(WAIT_S), ZeroDivisionError)
    connection.ping().result(WAIT_S)


def test_a_file_that_vanishes_while_it_is_sent_fails_its_put_alone(connected: Connected, tmp_path: Path) -> None:
    connection, transport = connected(answering)
    gate = hold_back(transport)
    source = tmp_path / "source"
    source.write_bytes(b"x")
    put = connection.put("/p", source)
    source.unlink()
    gate.set()

    assert isinstance(put.exception(WAIT_S), FileNotFoundError)
    connection.ping().result(WAIT_S)


def test_after_a_break_open_requests_are_sent_again(connected: Connected) -> None:
    seen: list[bytes] = []
    broke = threading.Event()

    def handler(request: dict[str, Any], body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        if request["do"] == "get":
            yield {}, b"0123456789"[request["offset"] : request["offset"] + 5]
            if request["offset"]:
                yield {**OK, "size": 10}, b""
            broke.set()

    connection, transport = connected(handler)
    reply = connection.get("/p", seen.append)
    until(lambda: seen)
    transport.drop()

    assert (reply.result(WAIT_S), b"".join(seen)) == (10, b"0123456789")
    assert len(transport.commands) == 2


@pytest.mark.parametrize("kind", [AuthenticationError, HostKeyError])
def test_a_refused_login_is_not_tried_again(connected: Connected, kind: type[HostError]) -> None:
    connection, transport = connected(silent)
    reply = connection.ping()
    transport.error = kind("no", host="lab8")
    transport.drop()

    with pytest.raises(kind):
        reply.result(WAIT_S)
    assert len(transport.commands) == 2
    assert not connection.usable()
    with pytest.raises(kind):
        connection.ping()


def test_an_unreachable_host_is_tried_again_until_it_is_back(connected: Connected) -> None:
    states: list[str] = []
    connection, transport = connected(answering)
    connection.on_state(lambda state: states.append(state.name))
    transport.error = Unreachable("gone", host="lab8")
    transport.drop()
    reply = connection.ping()
    until(lambda: states.count("reconnecting") >= 3)
    transport.error = None

    reply.result(WAIT_S)
    until(lambda: states[-1] == "connected")


def step(connection: HostConnection, seconds: float, each: Callable[[], Any] = lambda: None) -> float:
    """Let the watchdog look every 3 s for so long, from now; after how many seconds it found the stream dead."""
    now, passed = time.monotonic(), 0.0
    while passed < seconds and connection._link._connected:
        passed += 3.0
        each()
        connection._link.check(now + passed)
        time.sleep(0.005)  # what it asks for is sent
    return passed


def test_a_host_that_says_nothing_is_dead_after_45_s_and_asked_again_by_another_stream(connected: Connected) -> None:
    connection, transport = connected(lambda request, body: answering(request, body) if alive.is_set() else ())
    alive = threading.Event()
    reply = connection.put("/p", b"")
    until(lambda: transport.program.asked)  # type: ignore[attr-defined]

    found = step(connection, 300)
    alive.set()

    assert 45 <= found <= 48
    assert reply.exception(WAIT_S) is None
    assert len(transport.commands) == 2


def test_an_idle_host_has_time_to_answer_before_it_is_dead(connected: Connected) -> None:
    connection, transport = connected(silent)

    found = step(connection, 600)

    assert 260 <= found <= 266
    assert [asked["do"] for asked in transport.program.asked] == ["ping"]  # type: ignore[attr-defined]


def test_a_host_that_answers_pings_is_alive(connected: Connected) -> None:
    connection, transport = connected(lambda request, body: answering(request, body) if request["do"] == "ping" else ())
    connection.run(["sleep", "1000"])
    asked = transport.program.asked  # type: ignore[attr-defined]
    for _ in range(20):
        heard = connection._link._heard
        connection._link.check(heard + 16)
        until(lambda heard=heard: connection._link._heard > heard)

    assert [header["do"] for header in asked] == ["run"] + 20 * ["ping"]
    assert len(transport.commands) == 1


def test_an_upload_that_moves_is_alive_and_one_that_does_not_is_dead(connected: Connected) -> None:
    connection, _ = connected(silent)
    connection.run(["x"])
    began = time.monotonic()

    def move() -> None:
        connection._link._moved = began + 3.0 * next(steps)

    steps = itertools.count(1)
    moving = step(connection, 120, move)
    assert (moving, connection._link._connected) == (120, True)

    connection._link._moved = began
    step(connection, 60)
    assert not connection._link._connected


def test_each_chunk_that_is_taken_is_a_move_and_a_ping_is_none(connected: Connected) -> None:
    connection, transport = connected(silent)
    before = connection._link._moved
    connection.ping()
    until(lambda: transport.program.asked)  # type: ignore[attr-defined]
    assert connection._link._moved == before

    connection.put("/p", b"x")
    until(lambda: connection._link._moved > before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_watchdog_of_a_forked_child_leaves_the_streams_of_its_parent_alone(connected: Connected) -> None:
    connection, _ = connected(silent)
    connection.run(["x"])
    pid = os.fork()
    if not pid:
        found = step(connection, 100)
        os._exit(0 if found >= 100 else 1)

    assert os.waitpid(pid, 0)[1] == 0


def noisy(noise: bytes) -> FakeTransport:
    class Noisy(agent):
        def __call__(self, command: str, far: Far) -> int:
            far.write(noise)
            return super().__call__(command, far)

    return FakeTransport(Noisy(answering))


@pytest.mark.parametrize("size", [100, 3000, 300_000])
def test_what_an_rc_file_prints_is_kept_from_its_beginning(size: int) -> None:
    noise = (b"Welcome to lab8\n" + b"x" * size)[:size]

    connection = HostConnection(HOST, noisy(noise))

    assert connection.noise == (noise + b"noise of an rc file\n")[:2048].decode()
    connection.ping().result(WAIT_S)
    connection.close()


def test_no_marker_shows_what_was_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def chatty(command: str, far: Far) -> int:
        far.write(b"Welcome!\nEnter your PIN:\n")
        while far.read(65536):
            pass
        return 0

    monkeypatch.setattr(boot, "MARKER_S", 0.2)

    with pytest.raises(HostError, match="did not start within 0.2 s") as caught:
        HostConnection(HOST, FakeTransport(chatty))
    assert caught.value.evidence == ("Welcome!", "Enter your PIN:")


def test_a_closed_connection_says_so(connected: Connected) -> None:
    connection, _ = connected(silent)
    open_request = connection.ping()
    connection.close()

    with pytest.raises(HostError, match="was closed"):
        open_request.result(WAIT_S)
    with pytest.raises(HostError, match="was closed"):
        connection.ping()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_to_connect_itself(connected: Connected) -> None:
    connection, _ = connected(answering)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            connection.ping()
        except HostError as error:
            os.write(writer, error.message.encode())
        os._exit(0)
    os.waitpid(pid, 0)

    assert b"belongs to process" in os.read(reader, 1000)
    connection.ping().result(WAIT_S)
    os.close(reader)
    os.close(writer)


def test_a_process_shares_one_connection_until_it_is_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "transport_for", lambda host: FakeTransport(agent(answering)))

    first, again = hosts.connection_for(HOST), hosts.connection_for(HOST)
    first.close()
    second = hosts.connection_for(HOST)

    assert first is again
    assert second is not first
    second.close()


def test_a_python_with_a_variable_is_refused_before_anything_is_sent() -> None:
    transport = FakeTransport(agent(answering))

    with pytest.raises(Exception, match="cannot be used"):
        HostConnection(Host("lab8", "lab8", "bare", "clusterfn.yml:3", python="$SCRATCH/python"), transport)
    assert transport.commands == []
