"""How long a client waits before it connects again, what a caller reads meanwhile, and what ends the wait."""

from __future__ import annotations

import copy
import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn import Cancelled, HostError, JobError, Unreachable
from clusterfn.bridge.job_states import RUNNING, UNKNOWN
from clusterfn.calls.group import JobGroup
from clusterfn.calls.job import Job, run_of, shown_to_end
from clusterfn.errors import ClusterfnError, ConfigError, HostKeyError
from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.rpc import link
from tests.fakes.taken import taken
from tests.fakes.transport import FakeTransport, agent
from tests.unit.calls.groups import (
    HOST,
    Garbling,
    answered,
    followed,
    in_a_group,
    in_a_session,
    no_agent,
    of_a_session,
    silent,
)
from tests.waiting import until

LOST = "no connection to lab8 since 14:03:07, reconnecting: the host no longer answered"


def test_the_first_attempt_is_made_at_once_and_each_pause_is_twice_as_long_up_to_half_a_minute():
    longest = [max(link.pause_s(waits) for _ in range(300)) for waits in range(12)]
    shortest = [min(link.pause_s(waits) for _ in range(300)) for waits in range(12)]

    assert longest[0] == 0.0
    for waits, wanted in enumerate([1.0, 2.0, 4.0, 8.0, 16.0, *6 * [30.0]], 1):
        assert wanted * 0.9 < longest[waits] <= wanted
        assert wanted * 0.5 <= shortest[waits] < wanted * 0.6


def test_the_pauses_grow_while_a_host_is_away_and_begin_again_once_it_was_back(monkeypatch):
    waits: list[int] = []
    monkeypatch.setattr(link, "pause_s", lambda waited: waits.append(waited) or 0.001)
    monkeypatch.setattr(link, "SOON_S", 0.0)  # a stream that ends is not taken for one that broke at once
    transport = FakeTransport(agent(lambda request, body: [({"end": True, "ok": True}, b"")]))
    connection = HostConnection(HOST, transport)
    for _ in range(2):
        transport.error = Unreachable("gone", host="lab8")
        transport.drop()
        before = len(waits)
        reply = connection.ping()
        until(lambda: len(waits) >= before + link.MOST_WAITS + 4)  # on a busy machine there may be many more
        transport.error = None
        reply.result(150)
    connection.close()

    again = waits.index(0, 1)
    for round_of in (waits[:again], waits[again:]):
        assert round_of == [min(number, link.MOST_WAITS) for number in range(len(round_of))]


def test_a_job_says_so_and_afterwards_what_it_said_before():
    job = taken("7f3a" * 4, "lab8")
    heard: list[tuple[str, Any]] = []
    run_of(job).listen(lambda kind, what: heard.append((kind, what)))
    run_of(job).set_state(RUNNING, "n1")
    run_of(job).show_connection(LOST)
    run_of(job).show_connection(LOST)
    assert (job.state, job.status) == (RUNNING, f"RUNNING ({LOST})")
    run_of(job).show_connection("")

    assert job.status == "RUNNING (n1)"
    assert heard == [("state", RUNNING), ("connection", LOST), ("connection", "")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Tell = Callable[[Job[int]], None]


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *tells: Tell) -> str:
    """What stands on `stream` of a job that is told each of these, and then returns."""
    out = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", out)
    job = taken("7f3a" * 4, "lab8")
    run_of(job).submitted_at = time.monotonic() + 3600.0  # its clock stays at 00:00
    waiting = threading.Thread(target=lambda: shown_to_end(job, "train on lab8"))
    waiting.start()
    until(lambda: run_of(job).is_shown)
    for tell in tells:
        tell(job)
    if not job.running():
        job.set_running_or_notify_cancel()
    job.set_result(1)
    run_of(job).tell("done", None)
    waiting.join(150)
    return stream.getvalue().partition("\n")[2]


def test_a_terminal_shows_it_below_the_output_and_takes_it_away(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = shown(
        monkeypatch, Terminal(),
        lambda job: run_of(job).set_state(RUNNING, ""),
        lambda job: run_of(job).tell("stderr", b"epoch 1: half"),
        lambda job: run_of(job).show_connection(LOST),
        lambda job: run_of(job).show_connection(""),
        lambda job: run_of(job).tell("stderr", b" done\n"),
    )  # fmt: skip

    line = f"7f3a running 00:00 ({LOST})"[:58] + "…"
    assert text.endswith(f"\r\x1b[Kepoch 1: half\n\r\x1b[K{line}\r\x1b[K done\n")


REFUSED = HostError("the root is not safe to use", hint="set root:")
REFUSED.kind = "refused"
DEATHS: dict[str, tuple[Exception | agent, type[ClusterfnError], str]] = {
    "another host key": (HostKeyError("the key has changed"), HostKeyError, "the key has changed"),
    "a typo in ssh_config": (ConfigError("line 3 cannot be read"), ConfigError, "line 3 cannot be read"),
    "an unsafe root": (REFUSED, HostError, "the root is not safe to use"),
    "an error of ours": (ZeroDivisionError("by zero"), HostError, "The connection to lab8-.* broke on this machine"),
    "no frames": (Garbling(silent), HostError, "The host sent an invalid frame"),
}


@pytest.mark.parametrize("reason", DEATHS)
@pytest.mark.parametrize("waiter", [followed, in_a_group, in_a_session])
def test_a_waiting_caller_learns_at_once_why_the_connection_has_ended_for_good(on_fake, waiter, reason):
    host, transport = on_fake
    waits = waiter(host)
    how, error, words = DEATHS[reason]
    if isinstance(how, agent):
        transport.program = how
    else:
        transport.error = copy.copy(how)
    transport.drop()

    with pytest.raises(error, match=words):
        waits.results(150) if isinstance(waits, JobGroup) else waits.result(150)
    assert waits.state == UNKNOWN
    assert len(transport.commands) == (1 + link.GARBLED if isinstance(how, agent) else 2)  # nobody has logged in again


def test_a_host_that_lets_in_and_starts_no_agent_is_tried_for_ten_minutes(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(link, "time", SimpleNamespace(**{**vars(time), "monotonic": lambda: clock[0]}))
    tries, failing = link.Tries(), iter([*3 * ["home"], "away", *3 * ["home"]])

    def opener() -> Any:
        raise Unreachable("away") if next(failing) == "away" else no_agent("the home is not there")

    told: list[tuple[type, str]] = []
    for seconds in (0, 300, 599, 599, 599, 1198, 1199):
        clock[0] = float(seconds)
        with pytest.raises(HostError) as caught:
            tries.once(opener)
        told.append((caught.type, caught.value.message))

    home = "the home is not there"
    assert told[:-1] == [(Unreachable, words) for words in (home, home, home, "away", home, home)]
    assert told[-1] == (HostError, home)


def test_a_connection_that_was_closed_is_not_opened_again_by_those_who_waited(on_fake):
    session, transport = on_fake
    waits = [followed(session), in_a_group(session), in_a_session(session)]

    session.connection.close()

    with pytest.raises(HostError, match="was closed"):
        waits[0].result(150)
    until(lambda: all(each.state == "UNKNOWN" for each in waits))
    assert len(transport.commands) == 1


def test_the_error_of_a_lost_connection_names_the_job_and_what_to_do(on_fake: tuple[Any, FakeTransport]):
    session, transport = on_fake
    jobs = [followed(session, digits * 4) for digits in ("7f3a", "90aa")]
    transport.error = HostError("its root is not safe")
    transport.error.kind = "refused"
    transport.drop()

    for job in jobs:
        error = job.exception(150)
        assert isinstance(error, HostError)
        assert (error.job, error.kind) == (job.id, "")
        assert error.hint == f"the job may still run: clusterfn.attach('{job.id}').result()"


def test_two_attempts_that_supersede_each_other_end_their_job(on_fake: tuple[Any, FakeTransport]):
    session, transport = on_fake

    def superseded(request: dict[str, Any], body: bytes) -> Iterable[tuple[dict[str, Any], bytes]]:
        by = 1 if "attempts/2/" in request.get("until", "") else 2
        return answered(json.dumps({"kind": "superseded", "superseded_by": by}).encode())(request, body)

    transport.program.handler = superseded  # type: ignore[attr-defined]

    with pytest.raises(JobError, match="attempts \\[1, 2\\] name one another"):
        followed(session).result(150)


def test_what_a_failed_attempt_left_of_a_value_is_not_kept(on_fake: tuple[Any, FakeTransport]):
    session, transport = on_fake
    transport.program.handler = answered(b'{"kind": "cancelled", "value": null}', b"half a value")  # type: ignore[attr-defined]

    with pytest.raises(Cancelled):
        followed(session).result(150)


def test_a_host_that_reboots_ends_no_wait(on_fake: tuple[Any, FakeTransport]):
    session, transport = on_fake
    job = followed(session)
    states: list[str] = []
    session.connection.link.on_state(lambda state: states.append(state.cause))
    for words in ("nothing answers", "the shell does not start", "/home is not there"):
        transport.error = Unreachable(words) if words == "nothing answers" else no_agent(words)
        transport.drop()
        until(lambda words=words: states.count(words) >= 6)
    assert job.state == "RUNNING"
    transport.error = None
    transport.program.handler = answered(b'{"kind": "cancelled", "message": "stopped"}')  # type: ignore[attr-defined]

    with pytest.raises(Cancelled):
        job.result(150)


def test_a_call_of_a_lost_stream_gets_the_error_of_a_connection_that_has_ended(on_fake):
    session, transport = on_fake
    call = of_a_session(session)
    call.source.send(b"", {}, lambda: None)
    request = session.connection.connect_socket("/s", b"", lambda _: None)
    request.future.add_done_callback(lambda ended: call.source.go_on_with_files(True, ended.exception(0)))
    opened = len(transport.streams)

    session.connection.close()

    with pytest.raises(HostError, match="was closed") as lost:
        call.result(150)
    assert lost.value.job == call.id
    assert len(transport.streams) == opened, "no other connection is opened for it"
