"""The client's end of a session's stream: what comes through it, and what calls do when it or its server is lost."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from clusterfn import Session, Unreachable, WorkerLost
from clusterfn.calls import session_stream
from clusterfn.calls.session_job import SessionJob
from clusterfn.hosts.connection import HostConnection, Reply
from tests.fakes.session_line import AT_MOST, LARGEST, opened, send, sent, welcomed
from tests.processes import parent_of
from tests.turns import settle
from tests.unit.calls.test_streamed_calls import runner, speak, talk_around, through_the_socket
from tests.waiting import WAIT_S, until


def test_no_call_goes_through_it_before_the_session_has_answered():
    stream, connection = opened()

    assert send(stream, 1) is None
    connection.say("welcome")

    assert send(stream, 2)
    assert connection.written == [({"what": "call", "n": 2, "live": True, "sys_path": ["/m"]}, b"call")]
    assert send(stream, 3, LARGEST + b"x") is None, "a large call goes as files"


def test_calls_go_as_files_while_the_session_does_not_take_those_before():
    stream, connection = welcomed()

    went = [bool(send(stream, number, LARGEST)) for number in range(1, AT_MOST + 3)]
    assert went == [True] * AT_MOST + [False] * 2
    connection.say("taken", taken=2)
    went = [bool(send(stream, number, LARGEST)) for number in range(AT_MOST + 3, AT_MOST + 6)]
    assert went == [True] * 2 + [False]
    connection.say("again", taken=2, n=AT_MOST)
    went = [bool(send(stream, number, LARGEST)) for number in range(AT_MOST + 6, AT_MOST + 8)]
    assert went == [True, False], "what comes back is not on its way"
    connection.lose()
    connection.open_door()
    connection.say("welcome")

    assert send(stream, AT_MOST + 8), "nothing of a stream that is lost is on its way"


def test_a_call_hears_what_is_written_to_its_files_and_its_end():
    stream, connection = welcomed()
    call, other = sent(stream, 1), sent(stream, 2)

    connection.say("events", b"began\n", n=1)
    connection.say("stdout", b"out", n=1)
    connection.say("stderr", b"err", n=1)
    connection.say("end", b"{}value", n=1, outcome=2, has_value=True)
    connection.say("stdout", b"after the end", n=1)
    connection.say("end", b"{}", n=2, outcome=2, has_value=False)

    assert call.heard == [
        ("events.jsonl", b"began\n"), ("stdout", b"out"), ("stderr", b"err"), ("end", b"{}", b"value"),
    ]  # fmt: skip
    assert other.heard == [("end", b"{}", None)]


def test_calls_of_a_lost_stream_go_on_with_their_files_and_the_next_goes_through_another():
    stream, connection = welcomed()
    calls = [sent(stream, number) for number in (1, 2, 3)]
    connection.say("end", b"{}", n=1, outcome=2, has_value=True, taken=2)

    connection.lose()

    assert [call.heard[-1] for call in calls] == [("end", b"{}", b""), ("lost", True), ("lost", False)]
    assert send(stream, 4) is None, "until the session answers again"
    connection.open_door()
    connection.say("welcome")
    assert send(stream, 5)
    assert connection.written[-1][0]["n"] == 5


def test_a_stream_that_is_lost_while_a_call_is_written_to_it_holds_nobody():
    """The reader thread holds the connection's lock, for which the writer waits, when it hears of the end."""
    stream, connection = welcomed()
    reply = connection.opened[-1][1]

    def write(_: object, data: bytes) -> None:
        reader = threading.Thread(target=reply.reject, args=(Unreachable("the connection was lost"),))
        reader.start()
        reader.join(WAIT_S)
        assert not reader.is_alive(), "each waits for the other"

    connection.write = write  # type: ignore[method-assign]
    call = send(stream, 1)
    settle()

    assert call and call.heard == [("lost", False)]


def test_a_call_that_cannot_go_on_keeps_no_other_from_it():
    stream, connection = welcomed()
    first, second = sent(stream, 1), sent(stream, 2)

    def raises(**_: object) -> None:
        raise ZeroDivisionError

    first.go_on_with_files = raises  # type: ignore[method-assign]
    connection.lose()

    assert second.heard == [("lost", False)]
    assert len(connection.waiting) == 2, "it connects again"


def test_a_call_that_the_session_cannot_lay_out_is_sent_as_files():
    stream, connection = welcomed()
    call = sent(stream, 1)

    connection.say("again", n=1)

    assert call.heard == [("lost", False)]


@pytest.mark.parametrize("is_frame", [False, True])
def test_a_host_that_sends_no_frames_costs_no_call(is_frame: bool):
    stream, connection = welcomed()
    call = sent(stream, 1)

    with pytest.raises((ValueError, KeyError)) as odd:  # by which the connection ends the request
        if is_frame:
            connection.say("end", n=1)  # without its outcome
        connection.opened[-1][2](b"\0\0\0\4" + bytes(8) + b"none")
    connection.opened[-1][1].reject(odd.value)
    settle()

    assert call.heard == [("lost", False)]


def test_a_door_that_never_opens_is_not_tried_again():
    stream, connection = opened()

    connection.lose("srun: error")

    assert len(connection.waiting) == 1
    assert send(stream, 1) is None


def test_inside_the_job_of_a_scheduler_the_way_is_a_program_on_its_node():
    _, connection = opened(join=("srun", "--jobid=77"))
    assert connection.opened[-1][0] == ["srun", "--jobid=77", "python", "attach.py", "/s"]

    _, connection = opened(join=())
    assert connection.opened == [], "a scheduler without a way into its jobs: calls go as files"


def test_it_says_which_actors_have_ended_and_why():
    stream, connection = welcomed()
    connection.say("gone", actor=3, reason="its process was killed")

    assert connection.gone == [(3, "its process was killed")]
    assert send(stream, 1)


def test_who_withdraws_a_call_waits_until_it_is_in_its_folder():
    stream, connection = welcomed()
    assert send(stream, 1)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stream.await_taken, 1, 60.0)
        assert not waiting.done()
        connection.say("taken", taken=1)
        waiting.result(60)
        stream.await_taken(None, 60.0)
    stream.close()
    assert send(stream, 2) is None


def test_calls_get_the_error_of_a_connection_that_is_not_opened_again():
    stream, connection = welcomed()
    call = sent(stream, 1)

    connection.is_usable = False
    connection.lose("the host key has changed")

    assert call.heard == [("dead", str(Unreachable("the host key has changed")))]
    assert len(connection.waiting) == 1, "nothing more is asked of the host"


def test_a_forked_child_sends_nothing_through_it():
    stream, connection = welcomed()
    connection.is_usable = False

    assert send(stream, 1) is None


def test_a_session_that_dies_asks_its_host_for_all_of_its_calls_together(sent, tmp_path, monkeypatch):
    asked: list[int] = []
    have = HostConnection.have

    def noted(connection: HostConnection, paths: Sequence[str], **more: Any) -> Any:
        asked.append(len([path for path in paths if "/calls/" in path]))
        return have(connection, paths, **more)

    session = Session()
    through_the_socket(session, sent)
    server = parent_of(session.call(runner))
    calls = [session.submit(talk_around, str(tmp_path / "gate")) for _ in range(20)]
    until(lambda: calls[0].state == "RUNNING")
    monkeypatch.setattr(HostConnection, "have", noted)
    os.kill(server, signal.SIGKILL)

    assert all(isinstance(call.exception(150), WorkerLost) for call in calls)
    assert [each for each in asked if each] == [20, 20], "which have ended, and which of the others have begun"
    session.shutdown()


def test_calls_that_have_ended_without_an_outcome_are_not_followed_any_more(sent, tmp_path, monkeypatch):
    monkeypatch.setattr(session_stream, "MOST_BYTES", -1)  # the calls go as files, which are followed
    followed: list[Reply[Any]] = []

    follow = HostConnection.follow

    def noted(connection: HostConnection, files: Any, until: str = "", *rest: Any, **more: Any) -> Any:
        reply = follow(connection, files, until, *rest, **more)
        if "/calls/" in until:
            followed.append(reply)
        return reply

    monkeypatch.setattr(HostConnection, "follow", noted)
    session = Session()
    server = parent_of(session.call(runner))
    running, waiting = session.submit(talk_around, str(tmp_path / "gate")), session.submit(speak, "never")
    withdrawn = session.submit(speak, "never")
    until(lambda: running.state == "RUNNING")
    assert withdrawn.cancel()
    os.kill(server, signal.SIGKILL)

    assert all(isinstance(call.exception(150), WorkerLost) for call in (running, waiting))
    assert len(followed) >= 4, "four calls"
    until(lambda: all(reply.done() for reply in followed))
    session.shutdown()


def test_a_session_whose_job_was_withdrawn_says_so_instead_of_raising_that():
    holding = SessionJob.__new__(SessionJob)
    withdrawn: Any = concurrent.futures.Future()
    withdrawn.cancel()
    holding.job = withdrawn

    assert holding.why_over == "it was withdrawn before it started"
