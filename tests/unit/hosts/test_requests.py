"""Requests to a host in memory: which error each becomes, what is asked again, and what waits for a person."""

from __future__ import annotations

import errno
import io
import random
import threading
from typing import Any

import pytest

from clusterfn import AuthenticationError, HostDiskFull, HostError, Unreachable
from clusterfn.config.config_file import LOCAL
from clusterfn.hosts.rpc.frames import FrameReader, Header, error_of, pack
from tests.fakes.transport import agent
from tests.unit.hosts.in_memory import OK, Connected, answering, failing, hold_back, is_ping, refused, silent
from tests.waiting import WAIT_S, until


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("full", HostDiskFull, "No space is left on lab8 for /p"),
        ("denied", HostError, "/p on lab8 cannot be used"),
        ("missing", HostError, "/p does not exist on lab8"),
        ("timeout", HostError, "lab8 could not carry out the request"),
        ("skipped", HostError, "No such thing"),
        ("changed", HostError, "/p on lab8 has changed: No such thing"),
        ("lost", HostError, "No such thing"),
    ],
)
def test_an_error_frame_is_a_typed_error(connected: Connected, kind: str, error: type[HostError], words: str):
    connection, _ = connected(failing(kind, free=0, needed=2**20))

    with pytest.raises(error, match=words) as caught:
        connection.ping().result(WAIT_S)
    assert (caught.value.host, caught.value.kind) == ("lab8", kind)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("facts", "begins", "amounts"),
    [
        ({"free": 2**40, "errno": 122}, "Your disk quota on lab8 leaves no space for /p", "1 MB needed"),
        ({"free": 0, "files": 9}, "No space is left on lab8 for /p", "0 bytes free, 1 MB needed"),
        ({"free": 2**24, "files": 0}, "No more files can be made on lab8 for /p: the inode", "16 MB free, 1 MB needed"),
    ],
)
def test_a_full_disk_says_how_much_and_a_quota_is_named_and_not_contradicted(connected, facts, begins, amounts):
    connection, _ = connected(failing("full", needed=2**20, **facts))

    error = connection.put("/p", b"x").exception(WAIT_S)

    assert isinstance(error, HostDiskFull)
    assert str(error).startswith(begins) and error.evidence == ("No such thing", amounts)


@pytest.mark.parametrize("ask", ["result", "exception"])
def test_a_reply_that_does_not_come_says_who_did_not_answer_what_and_goes_on(connected: Connected, ask: str):
    connection, _ = connected(silent)
    reply = connection.run(["sinfo", "--noheader"])

    with pytest.raises(Unreachable, match="lab8 did not answer `run sinfo` within 0.01 s") as caught:
        getattr(reply, ask)(0.01)
    assert (reply.done(), caught.value.retryable, caught.value.host) == (False, True, "lab8")


def test_what_was_asked_is_reported_of_files_and_of_ends_too(connected: Connected):
    connection, _ = connected(silent)

    with pytest.raises(Unreachable, match="`follow /p`"):
        connection.wait("/p").result(0)
    with pytest.raises(Unreachable, match="`the end of spawn job.sh`"):
        connection.spawn(["job.sh"], "/", "/log").exited.result(0)


def test_small_requests_overtake_the_chunks_of_two_uploads_that_take_turns(connected: Connected):
    connection, transport = connected(
        lambda request, body: answering(request, body) if is_ping(request) or request.get("last") else ()
    )
    gate = hold_back(transport)
    first = connection.put("/a", bytes(2**20))
    second = connection.put("/b", bytes(2**20))
    ping = connection.ping()
    gate.set()
    for reply in (first, second, ping):
        reply.result(WAIT_S)

    asked = [(header["do"], header["id"]) for header in transport.program.asked]  # type: ignore[attr-defined]
    chunks = [number for do, number in asked if do == "chunk"]
    assert asked.index(("have", ping.id)) < len(asked) - 4
    assert chunks[1:7] in ([first.id, second.id] * 3, [second.id, first.id] * 3)


def test_a_file_that_vanishes_while_it_is_sent_fails_its_put_alone(connected: Connected, tmp_path):
    connection, transport = connected(lambda request, body: [(OK, b"")] if is_ping(request) else [])
    gate = hold_back(transport)
    source = tmp_path / "source"
    source.write_bytes(b"x")
    put = connection.put("/p", source)
    source.unlink()
    gate.set()

    assert isinstance(put.exception(WAIT_S), FileNotFoundError)
    connection.ping().result(WAIT_S)


def test_a_refused_login_waits_for_a_person_and_is_not_tried_again(connected: Connected, logged_in: threading.Event):
    connection, transport, asked = refused(connected, AuthenticationError("no", host="lab8"))
    until(lambda: connection.link.state.name == "waiting")
    with pytest.raises(
        AuthenticationError, match="connection to lab8 needs you: clusterfn login lab8; your jobs keep running"
    ):
        connection.ping()
    transport.error, transport.program = None, agent(answering)
    with pytest.raises(Unreachable):  # it waits on, and nobody knocks at the host
        asked.result(0.2)
    assert (len(transport.commands), connection.link.usable()) == (2, True)

    logged_in.set()
    asked.result(WAIT_S)
    assert (len(transport.commands), connection.link.state.name) == (3, "connected")


def test_a_call_right_after_the_login_does_not_wait_for_the_next_look(connected, logged_in, monkeypatch):
    connection, transport = connected(answering)
    monkeypatch.setattr("clusterfn.hosts.rpc.link.LOCAL_LOOK_S", 60.0)
    transport.error = AuthenticationError("no", host="lab8")
    transport.drop()
    until(lambda: not connection.link.line.connected)
    with pytest.raises(AuthenticationError):
        connection.ping().result(WAIT_S)

    transport.error = None
    logged_in.set()
    connection.ping().result(WAIT_S)


def test_a_machine_without_a_free_file_is_no_end(connected: Connected):
    states: list[Any] = []
    connection, transport = connected(answering)
    connection.link.on_state(states.append)
    transport.error = OSError(errno.EMFILE, "Too many open files")
    transport.drop()
    reply = connection.ping()
    until(lambda: len(states) > 6)
    transport.error = None

    reply.result(WAIT_S)
    assert "This machine could not open a connection to lab8: [Errno 24] Too many open files" in states[2].cause


def test_a_stream_that_cannot_be_closed_keeps_nobody_waiting(connected: Connected):
    connection, transport = connected(silent)
    reply = connection.ping()
    transport.streams[0].close = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]

    connection.close()

    with pytest.raises(HostError, match="was closed"):
        reply.result(WAIT_S)


def test_a_refusal_that_does_not_say_ok_false_is_one(connected: Connected):
    refusal = {"end": True, "error": {"kind": "missing", "message": "no such file", "path": ["/p"]}}
    connection, _ = connected(lambda request, body: answering(request, body) if is_ping(request) else [(refusal, b"")])

    with pytest.raises(HostError, match="The file does not exist on lab8"):
        connection.have(["/p"]).result(WAIT_S)
    connection.ping().result(WAIT_S)


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_callbacks_that_raise_stop_no_other_callback_and_no_reader(connected, error, caplog):
    connection, transport = connected(answering)
    called: list[str] = []

    def broken(_: object) -> None:
        raise error

    connection.link.on_state(broken)
    connection.link.on_state(lambda state: called.append(state.name))
    connection.ping().result(WAIT_S)
    transport.drop()
    connection.ping().result(WAIT_S)
    connection.close()

    until(lambda: called == ["reconnecting", "connected", "closed"])
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == 3 * [error]


def test_a_callback_that_waits_while_the_connection_closes_gets_an_error(connected: Connected):
    connection, _ = connected(silent)
    first, second = connection.ping(), connection.ping()
    told: list[BaseException] = []

    def wait(_: object) -> None:
        with pytest.raises(RuntimeError, match="would wait forever") as caught:
            second.result(WAIT_S)
        told.append(caught.value)

    first.future.add_done_callback(wait)
    connection.close()

    assert told
    with pytest.raises(HostError, match="was closed"):
        second.result()


def test_an_answer_and_a_cancel_at_once_end_a_request_once(connected: Connected):
    connection, _ = connected(silent)
    reply = connection.ping()
    connection.close()

    reply.resolve(None)
    reply.reject(ValueError())

    assert isinstance(reply.exception(0), HostError)


@pytest.mark.parametrize("seed", range(5))
def test_frames_come_out_of_any_pieces_whole_and_in_order(seed: int) -> None:
    choose = random.Random(seed)
    sent: list[tuple[Header, bytes]] = []
    for number in range(60):
        sent.append(({"id": number, "size": 1}, choose.randbytes(choose.choice([0, 1, 5000, 70_000]))))
    data = io.BytesIO(b"".join(pack(header, body) for header, body in sent))
    reader = FrameReader(lambda size: data.read(min(size, choose.choice([1, 10, 1000, 20_000]))))

    assert list(iter(reader.frame, None)) == sent


def test_a_frame_that_is_none_is_an_error_before_its_body_has_come() -> None:
    garbage = b"\0\0\0\5" + (5000).to_bytes(8, "big") + b"wrong"
    data = io.BytesIO(pack({"id": 2}, b"before") + garbage)
    reader = FrameReader(data.read)

    assert reader.frame() == ({"id": 2}, b"before")
    with pytest.raises(HostError, match="invalid frame: its header is not JSON"):
        reader.frame()


def test_a_root_of_the_built_in_host_that_cannot_be_used_has_its_own_hint():
    error = error_of(LOCAL, {"kind": "denied", "message": "Permission denied", "path": "/.clusterfn"})

    assert error.hint.startswith("in clusterfn.yml, add `hosts: {local: {scheduler: local, root: FOLDER}}`")
