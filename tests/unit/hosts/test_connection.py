"""The agent's client against a host in memory: answers, errors, order, reconnects, forks."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from clusterfn.config.spec import Host
from clusterfn.errors import AuthenticationError, HostError, Unreachable
from clusterfn.hosts import connection as hosts
from clusterfn.hosts import host_state, loop
from clusterfn.hosts.connection import ConnectionState, Followed, HostConnection, Reply
from clusterfn.hosts.host_state import HostState
from clusterfn.hosts.rpc import boot, link
from clusterfn.hosts.rpc.frames import FRAME, LONGEST_HEADER, pack
from clusterfn.scheduler.base import Answer
from tests.fakes.transport import HELLO, FakeStream, FakeTransport, Far, agent
from tests.unit.hosts.in_memory import HOST, OK, Connected, answering, hold_back, is_ping, refused, silent
from tests.waiting import WAIT_S, until

FOLLOWED = Followed("/p", print)
GROWN = ({"file": 0, "offset": 0}, b"x")  # of a file that is followed


def test_an_error_of_what_takes_output_ends_no_wait_for_the_outcome(connected: Connected, caplog):
    grown = [({"file": file, "offset": at}, b"x") for at in (0, 1) for file in (0, 1)]
    connection, _ = connected(lambda request, body: [*grown, (OK, b"{}")])
    broken: list[bytes] = []
    seen: list[bytes] = []

    def fails(data: bytes) -> None:
        broken.append(data)
        sys.exit(3)

    reply = connection.follow([Followed("/out", fails), Followed("/err", seen.append)], "/outcome")

    assert (reply.result(WAIT_S), seen, broken) == (b"{}", [b"x"] * 2, [b"x"])
    assert "what takes the bytes of /out failed" in caplog.text


def test_where_no_login_can_be_held_a_refused_one_ends_every_wait(connected: Connected, monkeypatch):
    monkeypatch.setattr(link, "can_hold", lambda host: False)
    connection, transport, asked = refused(connected, AuthenticationError("no", host="lab8"))

    with pytest.raises(AuthenticationError, match="lab8 needs you: the next call or attach asks again; your jobs"):
        asked.result(WAIT_S)
    assert (len(transport.commands), connection.link.usable()) == (2, False)


def test_a_login_that_is_held_and_does_not_help_is_tried_after_growing_pauses(connected, logged_in, monkeypatch):
    waits: list[int] = []
    monkeypatch.setattr(link, "pause_s", lambda waited: waits.append(waited) or 0.001)
    logged_in.set()
    connection, _, _ = refused(connected, AuthenticationError("the held connection is stale", host="lab8"))
    states: list[ConnectionState] = []
    connection.link.on_state(states.append)

    until(lambda: len(waits) >= 6)
    assert waits[:6] == [0, 1, 2, 3, 4, 5]
    assert not any("has logged in again" in state.cause for state in states)


def test_an_ssh_that_cannot_say_which_host_is_meant_ends_no_wait_for_a_person(connected: Connected, monkeypatch):
    looks: list[None] = []

    def slow(host: Host) -> bool:
        looks.append(None)
        raise Unreachable("ssh did not resolve its configuration")

    monkeypatch.setattr(link, "is_held", slow)
    monkeypatch.setattr(link, "LOCAL_LOOK_S", 0.001)
    connection, _, _ = refused(connected, AuthenticationError("no", host="lab8"))

    until(lambda: len(looks) >= 3)
    assert (connection.link.usable(), connection.link.state.name) == (True, "waiting")


def step(connection: HostConnection, seconds: float, each: Callable[[], Any] = lambda: None) -> float:
    """Check it every 3 s for so long since the last sign of life; after how many seconds it was dead."""
    pulse, passed = connection.link.line.pulse, 0.0
    now = max(pulse.heard, pulse.moved)  # and not this moment: a busy machine may have come here seconds later
    stream = connection.link.line.opened.stream  # another one is there as soon as this one is given up
    while passed < seconds and not stream.closed:  # type: ignore[attr-defined]
        passed += 3.0
        each()
        loop.start(connection.link.check(now + passed)).result(WAIT_S)
        time.sleep(0.005)  # what it asks for is sent
    return passed


def test_an_idle_host_has_time_to_answer_before_it_is_dead(connected: Connected):
    connection, transport = connected(silent)

    step(connection, 246)
    until(lambda: transport.program.asked)  # type: ignore[attr-defined]
    found = step(connection, 600)

    assert 260 <= found <= 266
    assert list(map(is_ping, transport.program.asked)) == [True]  # type: ignore[attr-defined]


def test_a_host_that_answers_pings_is_alive(connected: Connected):
    connection, transport = connected(lambda request, body: answering(request, body) if is_ping(request) else ())
    connection.run(["sleep", "1000"])
    asked = transport.program.asked  # type: ignore[attr-defined]
    for _ in range(20):
        heard = connection.link.line.pulse.heard
        loop.start(connection.link.check(heard + 16)).result(WAIT_S)
        until(lambda heard=heard: connection.link.line.pulse.heard > heard)

    assert [is_ping(header) for header in asked] == [False] + 20 * [True]
    assert len(transport.commands) == 1


def test_an_upload_that_moves_is_alive_and_one_that_does_not_is_dead(connected: Connected):
    connection, _ = connected(silent)
    connection.run(["x"])
    began = time.monotonic()

    def move() -> None:
        connection.link.line.pulse.moved = began + 3.0 * next(steps)

    steps = itertools.count(1)
    moving = step(connection, 120, move)
    assert (moving, connection.link.line.connected) == (120, True)

    connection.link.line.pulse.moved = began
    assert step(connection, 60) < 60


def test_a_dead_stream_that_closes_slowly_delays_no_other_conversation(connected: Connected, monkeypatch):
    connection, transport = connected(silent)
    stream, go = transport.streams[0], threading.Event()
    close = stream.close

    def close_slowly() -> None:
        go.wait(WAIT_S)
        close()

    monkeypatch.setattr(stream, "close", close_slowly)
    now = connection.link.line.pulse.heard
    loop.start(connection.link.check(now + 1000)).result(WAIT_S)  # asks for a sign of life
    checked = loop.start(connection.link.check(now + 2000))

    loop.start(asyncio.sleep(0)).result(WAIT_S)
    assert not checked.done()

    go.set()
    checked.result(WAIT_S)
    assert stream.closed


def test_each_chunk_that_is_taken_is_a_move_and_a_ping_is_none(connected: Connected):
    connection, transport = connected(silent)
    before = connection.link.line.pulse.moved
    connection.ping()
    until(lambda: transport.program.asked)  # type: ignore[attr-defined]
    assert connection.link.line.pulse.moved == before

    connection.put("/p", b"x")
    until(lambda: connection.link.line.pulse.moved > before)


GARBAGE = {
    "text": b"Warning: your quota is nearly used up\n" * 9, "absurd header": FRAME.pack(LONGEST_HEADER + 1, 0),
    "absurd body": FRAME.pack(9, 2**63) + b'{"id": 2}', "not JSON": FRAME.pack(3, 0) + b"{x}",
    "no UTF-8": FRAME.pack(2, 0) + b"\xff\xff", "too deep": FRAME.pack(200_000, 0) + b"[" * 200_000,
    "a list": FRAME.pack(2, 0) + b"[]", "no id": pack({"end": True, "ok": True}),
    "id of nobody": pack({"id": 12345, "end": True, "ok": True}), "negative id": pack({"id": -1}),
    "an end without a verdict": pack({"id": 2, "end": True}),
    "an error without words": pack({"id": 2, "end": True, "ok": False, "error": {"kind": "lost"}}),
}  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_what_is_no_frame_breaks_the_stream_and_the_request_is_asked_again(connected: Connected, garbage: bytes):
    connection, transport = connected(
        lambda request, body: answering(request, body) if len(transport.streams) > 1 else ()
    )
    states: list[ConnectionState] = []
    connection.link.on_state(states.append)
    reply = connection.ping()

    transport.streams[0].far.write(garbage)

    reply.result(WAIT_S)
    until(lambda: len(states) == 2)
    assert states[0].cause.startswith("The host sent an invalid frame: ")
    assert len(transport.commands) == 2


def test_a_host_that_sends_no_frames_after_a_while_is_not_given_up(connected: Connected, monkeypatch):
    monkeypatch.setattr(link, "SOON_S", 0.0)  # each stream has lasted

    def answer(request: dict[str, Any], body: bytes) -> Any:
        if len(transport.streams) > link.GARBLED + 1:
            return answering(request, body)
        transport.streams[-1].far.write(GARBAGE["text"])
        return ()

    connection, transport = connected(answer)

    connection.ping().result(WAIT_S)
    assert connection.link.usable()


def test_the_reason_of_a_refused_connection_is_not_that_of_its_requests(connected: Connected):
    error = HostError("/root is not safe to use", host="lab8")
    error.kind, error.path = "refused", "/root"
    _, _, asked = refused(connected, error)

    with pytest.raises(HostError, match="not safe to use") as caught:
        asked.result(WAIT_S)
    assert (caught.value.kind, caught.value.path) == ("", "")


def test_what_needs_a_request_that_was_cancelled_while_away_is_not_sent_nor_what_needs_that(connected: Connected):
    connection, transport, _ = refused(connected, Unreachable("away", host="lab8"))
    until(lambda: connection.link.state.name == "reconnecting")
    first = connection.run(["a"])
    second = connection.run(["b"], after=[first])
    third = connection.run(["c"], after=[second])
    first.cancel()
    transport.error = None

    assert ["it was cancelled" in str(reply.exception(WAIT_S)) for reply in (second, third)] == [True, True]
    assert {header["do"] for header in transport.program.asked} <= {"have", "hello"}  # type: ignore[attr-defined]


def test_an_agent_that_starts_and_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(boot, "HELLO_S", 0.2)

    def program(command: str, far: Far) -> int:
        far.write(agent.marker(None, far) + b"\n")  # type: ignore[arg-type]
        while far.read(1000):
            pass
        return 1

    transport = FakeTransport(program)
    with pytest.raises(HostError, match=r"The agent on lab8 did not answer within 0\.2 s"):
        HostConnection(HOST, transport)
    assert transport.streams[0].closed


def test_a_first_connection_without_a_free_file_says_so():
    transport = FakeTransport(agent(answering))
    transport.error = OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(Unreachable, match="Too many open files") as caught:
        HostConnection(HOST, transport)
    assert (caught.value.host, caught.value.retryable) == ("lab8", True)


def test_an_error_of_another_kind_ends_every_request_as_a_host_error(connected: Connected):
    connection, transport = connected(silent)
    replies: list[Reply[Any]] = [
        connection.ping(), connection.follow([FOLLOWED]), connection.put("/p", b"x"), connection.run(["x"]),
        connection.still("/p", 1, print), connection.wait("/p"), connection.repeat(["x"], 1, print),
        connection.get("/p", print), spawned := connection.spawn(["x"], "/", "/log"), spawned.exited,
    ]  # fmt: skip
    transport.error = ZeroDivisionError("by zero")
    transport.drop()

    for reply in replies:
        with pytest.raises(HostError, match="The connection to lab8 broke on this machine") as caught:
            reply.result(WAIT_S)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert caught.value.evidence == ("ZeroDivisionError: by zero",)


PIECE = 20_000


def two_pieces(request: dict[str, Any], body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Every file is as large as two pieces, and everything else is well."""
    if request["do"] != "get":
        yield from answering(request, body)
        return
    for _ in range(2):
        yield {"size": 2 * PIECE}, bytes(PIECE)
    yield {**OK, "size": 2 * PIECE}, b""


def test_a_file_that_cannot_be_taken_fails_its_request_alone(connected: Connected):
    connection, transport = connected(two_pieces)
    whole = bytearray()

    def broken(part: bytes) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        connection.get("/p", broken).result(WAIT_S)
    assert (connection.get("/p", whole.extend).result(WAIT_S), len(whole)) == (2 * PIECE, 2 * PIECE)
    assert len(transport.commands) == 1


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"end": True, "error": {"kind": "refused", "message": "others may write there", "path": "/r"}}, "not safe"),
        ({"end": True, "ok": False, "error": {"kind": "full", "message": "no space", "free": "much"}}, "No space"),
        ({"id": 7, "end": True, "ok": True}, "not an answer to the first request"),
        ({"end": True, "ok": True, "version": "3.6"}, "sent a greeting without 'root'"),
        ({"end": True, "ok": True, **HELLO, "version": "3.6"}, "sent an invalid greeting"),
    ],
)
def test_a_hello_that_makes_no_sense_is_an_error_of_that_host(hello: dict[str, Any], words: str):
    class Greeting(agent):
        def answer(self, far: Far, header: dict[str, Any], body: bytes) -> None:
            far.write(pack({"id": header["id"], **hello}))

    transport = FakeTransport(Greeting(silent))
    with pytest.raises(HostError, match=words) as caught:
        HostConnection(HOST, transport)
    assert caught.value.host == "lab8" and transport.streams[0].far.input.closed


def test_a_part_of_a_long_answer_shows_that_a_slow_line_is_alive(connected: Connected):
    connection, transport = connected(silent)
    reply = connection.ping()
    answer = pack({"id": reply.id, **OK}, b"x" * 1000)
    before = connection.link.line.pulse.moved

    transport.streams[0].far.write(answer[:500])

    until(lambda: connection.link.line.pulse.moved > before)
    assert not reply.done()
    transport.streams[0].far.write(answer[500:])
    reply.result(WAIT_S)


def test_a_host_keeps_no_watch_of_a_connection_that_has_ended(monkeypatch):
    told: list[object] = []

    class Watch:
        def __init__(self, connection: HostConnection, *_: Any, **__: Any) -> None:
            self.connection = connection

        def remove(self, job_name: str) -> None:
            told.append(self.connection)

    monkeypatch.setattr(hosts, "transport_for", lambda host: FakeTransport(agent(answering)))
    monkeypatch.setattr(host_state, "SchedulerWatch", Watch)
    state = HostState(HOST._replace(address=f"lab8-{os.urandom(4).hex()}"))
    state.watch.connection.close()  # type: ignore[attr-defined]
    now = state.watch.connection  # type: ignore[attr-defined]

    state.unwatch("f.7f3a")

    assert told == [now]
    now.close()


def test_a_host_that_was_started_again_is_known_by_its_new_boot_id(monkeypatch):
    connection = Mock(facts=Mock(boot_id="one", have=()))
    monkeypatch.setattr(host_state, "connection_for", lambda host, have: connection)
    there = HostState(Host("lab9", "", "bare", "clusterfn.yml:3"))
    before = there.scheduler.submitted(Answer(pid=7, starttime="1"))
    connection.facts.boot_id = "two"

    assert (before, there.scheduler.submitted(Answer(pid=7, starttime="1"))) == ("one:7:1", "two:7:1")


def test_streams_that_break_at_once_are_made_after_pauses(connected: Connected, monkeypatch):
    monkeypatch.setattr(link, "SOON_S", 600.0)  # however busy the machine is
    waits: list[int] = []
    monkeypatch.setattr(link, "pause_s", lambda pauses: waits.append(pauses) or 0.0)
    connection, transport = connected(lambda request, body: [] if len(waits) == 5 else transport.drop() or [])  # type: ignore[func-returns-value]

    connection.run(["a program that kills the agent"])

    until(lambda: len(waits) == 5)
    assert waits == [0, 1, 2, 3, 4]


def test_a_callback_that_waits_for_its_own_connection_gets_an_error(connected: Connected):
    connection, transport = connected(lambda ask, body: [GROWN] if ask["do"] == "follow" else answering(ask, body))
    follow = connection.follow([Followed("/p", lambda data: connection.run(["x"]).result())])
    told: list[BaseException | None] = []

    def wait(_: object) -> None:
        with pytest.raises(RuntimeError, match="A callback waits for the answer of lab8 to `have`") as caught:
            connection.ping().exception(WAIT_S)
        told.append(caught.value)

    assert isinstance(follow.exception(WAIT_S), RuntimeError)
    gate = hold_back(transport)  # an answer that is there would call it in this thread
    connection.ping().future.add_done_callback(wait)
    gate.set()
    until(lambda: told)
    connection.ping().result(WAIT_S)


def test_a_later_thread_with_the_identifier_of_one_that_has_ended_may_wait_for_answers(connected: Connected):
    connection, _ = connected(answering)
    ended = {thread.ident for thread in threading.enumerate() if thread.name.endswith("-lab8")}
    connection.close()
    connection.link.join_until(time.monotonic() + WAIT_S)
    seen: dict[int, bool] = {}
    together = threading.Barrier(30)  # or each would get the identifier of the one before it

    def look(_: int) -> None:
        seen[threading.get_ident()] = connection.link.answers_here()
        together.wait(WAIT_S)

    def start_thirty() -> set[int | None]:
        with ThreadPoolExecutor(together.parties) as later:
            list(later.map(look, range(together.parties)))
        return ended & seen.keys()

    until(start_thirty)
    assert not any(seen.values())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_gets_an_error_though_a_lock_was_held_and_for_open_requests(connected: Connected):
    connection, _ = connected(lambda request, body: answering(request, body) if is_ping(request) else ())
    reply = connection.run(["x"])
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with connection.link.line.changed:
            held.set()
            go.wait(WAIT_S)

    threading.Thread(target=hold, daemon=True).start()
    held.wait(WAIT_S)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(int(WAIT_S))
        for ask in (connection.ping, reply.result):
            try:
                ask()
            except HostError as error:
                os.write(writer, error.message.encode() + b"\n")
        reply.cancel()
        connection.close()
        HostConnection(HOST, FakeTransport(agent(answering))).ping().result(WAIT_S)
        os._exit(0)
    go.set()

    assert os.waitpid(pid, 0)[1] == 0
    assert [b"which forked this one" in line for line in os.read(reader, 1000).splitlines()] == [True, True]
    connection.ping().result(WAIT_S)  # of the parent
    os.close(reader)
    os.close(writer)


def test_no_marker_shows_what_was_printed(monkeypatch):
    said = threading.Event()

    def chatty(command: str, far: Far) -> int:
        far.write(b"Welcome!\nEnter your PIN:\n")
        said.set()
        while far.read(65536):
            pass
        return 0

    class Chatty(FakeTransport):
        def open(self, command: str, asker: Any = None) -> FakeStream:
            stream = super().open(command, asker)
            assert said.wait(WAIT_S)
            return stream

    monkeypatch.setattr(boot, "MARKER_S", 0.2)

    with pytest.raises(HostError, match="did not start within 0.2 s") as caught:
        HostConnection(HOST, Chatty(chatty))
    assert caught.value.evidence == ("Welcome!", "Enter your PIN:")


def test_a_python_with_a_variable_is_refused_before_anything_is_sent():
    transport = FakeTransport(agent(answering))

    with pytest.raises(Exception, match="cannot be used"):
        HostConnection(Host("lab8", "lab8", "bare", "clusterfn.yml:3", python="$SCRATCH/python"), transport)
    assert transport.commands == []


@pytest.mark.parametrize("keys", [{"scheduler": "local"}, {"scheduler": "bare", "transport": "local"}])
def test_this_machine_is_served_by_the_python_that_asks(keys: dict[str, str]):
    host = Host("here", "", source="clusterfn.yml:3", **keys)

    assert boot.wanted_python(host) == sys.executable
    assert boot.wanted_python(host._replace(python="/usr/bin/python3")) == "/usr/bin/python3"
    assert boot.wanted_python(HOST) == "auto"


@pytest.mark.parametrize("program", ["", "/usr/sbin/uwsgi", "python3", "/home/$USER/bin/python3", "/a\nb/python3"])
def test_what_cannot_be_named_or_is_no_python_is_searched_for(program: str, monkeypatch):
    monkeypatch.setattr(sys, "executable", program)

    assert boot.wanted_python(Host("here", "", "local", "clusterfn.yml:3")) == "auto"
