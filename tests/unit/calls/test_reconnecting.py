"""How long a client waits before it connects again, and what whoever waits for a job is told meanwhile."""

from __future__ import annotations

import copy
import gc
import io
import json
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.bridge.job_states import RETURNED, RUNNING, UNKNOWN
from clusterfn.calls import job_display
from clusterfn.calls.group import JobGroup
from clusterfn.calls.group_state import GroupState
from clusterfn.calls.group_tracker import GroupTracker
from clusterfn.calls.job import Job, entry_of
from clusterfn.calls.job_tracker import Tracker
from clusterfn.calls.session_stream import CallStream
from clusterfn.calls.session_tracker import SessionCallJob, SessionCallTracker
from clusterfn.calls.submission import Started
from clusterfn.config.job_spec import Group, JobSpec
from clusterfn.config.spec import Host, Interpreter, Resources
from clusterfn.errors import (
    Cancelled,
    ClusterfnError,
    ConfigError,
    HostError,
    HostKeyError,
    JobError,
    ResultError,
    Unreachable,
)
from clusterfn.hosts import connection as hosts
from clusterfn.hosts.connection import ConnectionState, HostConnection
from clusterfn.hosts.host_state import HostState
from clusterfn.hosts.rpc import link, reconnect
from clusterfn.hosts.rpc.link import describe_trouble
from clusterfn.packing import payload as payloads
from clusterfn.scheduler.base import SchedulerLimits
from tests.fakes.taken import Taken
from tests.fakes.transport import FakeTransport, Far, agent
from tests.waiting import until

HOST = Host("lab8", "lab8", "bare", "clusterfn.yml:3")
LOST = "no connection to lab8 since 14:03:07, reconnecting: the host no longer answered"


def test_the_first_attempt_is_made_at_once_and_each_pause_is_twice_as_long_up_to_half_a_minute() -> None:
    longest = [max(reconnect.pause_s(waits) for _ in range(300)) for waits in range(12)]
    shortest = [min(reconnect.pause_s(waits) for _ in range(300)) for waits in range(12)]

    assert longest[0] == 0.0
    for waits, wanted in enumerate([1.0, 2.0, 4.0, 8.0, 16.0, *6 * [30.0]], 1):
        assert wanted * 0.9 < longest[waits] <= wanted
        assert wanted * 0.5 <= shortest[waits] < wanted * 0.6


def test_the_pauses_grow_while_a_host_is_away_and_begin_again_once_it_was_back(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(reconnect, "pause_s", lambda waited: waits.append(waited) or 0.001)
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


def test_what_comes_after_an_upload_that_was_dropped_meanwhile_is_not_asked_of_the_next_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnect, "pause_s", lambda _: 0.001)
    asked: list[str] = []

    def answers(request: dict[str, Any], body: bytes) -> Iterable[tuple[dict[str, Any], bytes]]:
        asked.append(request["do"])
        return [({"end": True, "ok": True}, b"")] if request.get("paths") == [] else []

    transport = FakeTransport(agent(answers))
    connection = HostConnection(HOST, transport)
    upload = connection.put("/root/jobs/7f3a/payload.pkl", b"x")
    start = connection.run(["sh", "job.sh"], after=[upload])
    until(lambda: "run" in asked)
    transport.error = Unreachable("gone", host="lab8")
    transport.drop()
    until(lambda: connection.state.name == "reconnecting")
    asked.clear()

    upload.cancel()
    transport.error = None

    with pytest.raises(HostError, match="it was cancelled"):
        start.result(150)
    connection.ping().result(150)
    assert "run" not in asked
    connection.close()


def test_what_is_lost_and_since_when_is_said_in_words() -> None:
    words = describe_trouble("lab8", ConnectionState("reconnecting", 0.0, "the host no longer answered"))

    assert re.fullmatch(r"no connection to lab8 since \d\d:\d\d:\d\d, reconnecting: the host no longer answered", words)
    needs_you = "connection to lab8 needs you: clusterfn login lab8; your jobs keep running"
    assert describe_trouble("lab8", ConnectionState("waiting", 0.0, needs_you)) == needs_you
    assert describe_trouble("lab8", ConnectionState("connected", 0.0)) == ""
    assert describe_trouble("lab8", ConnectionState("closed", 0.0, "gone")) == ""


def test_a_job_says_so_and_afterwards_what_it_said_before() -> None:
    job = Job[int]("7f3a" * 4, "train", "lab8", "/jobs/7f3a", Taken())  # type: ignore[arg-type]
    heard: list[tuple[str, Any]] = []
    entry_of(job).listen(lambda kind, what: heard.append((kind, what)))
    entry_of(job).set_state(RUNNING, "n1")
    entry_of(job).show_connection(LOST)
    entry_of(job).show_connection(LOST)
    assert (job.state, job.status) == (RUNNING, f"RUNNING ({LOST})")
    entry_of(job).show_connection("")

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
    job = Job[int]("7f3a" * 4, "train", "lab8", "/jobs/7f3a", Taken())  # type: ignore[arg-type]
    entry_of(job).submitted_at = time.monotonic() + 3600.0  # its clock stays at 00:00
    waiting = threading.Thread(target=lambda: job_display.result(job, "train on lab8"))
    waiting.start()
    until(lambda: entry_of(job).is_shown)
    for tell in tells:
        tell(job)
    if not job.running():
        job.set_running_or_notify_cancel()
    job.set_result(1)
    entry_of(job).tell("done", None)
    waiting.join(150)
    return stream.getvalue().partition("\n")[2]


def test_a_terminal_shows_it_below_the_output_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = shown(
        monkeypatch, Terminal(),
        lambda job: entry_of(job).set_state(RUNNING, ""),
        lambda job: entry_of(job).tell("stderr", b"epoch 1: half"),
        lambda job: entry_of(job).show_connection(LOST),
        lambda job: entry_of(job).show_connection(""),
        lambda job: entry_of(job).tell("stderr", b" done\n"),
    )  # fmt: skip

    line = f"7f3a running 00:00 ({LOST})"[:58] + "…"
    assert text.endswith(f"\r\x1b[Kepoch 1: half\n\r\x1b[K{line}\r\x1b[K done\n")


def silent(request: dict[str, Any], body: bytes) -> Iterable[tuple[dict[str, Any], bytes]]:
    return ()


class Garbling(agent):
    """Says hello, and then what is no frame."""

    def answer(self, far: Far, header: dict[str, Any], body: bytes) -> None:
        super().answer(far, header, body)
        if header["do"] != "hello":
            far.write(b"Warning: your quota is nearly used up\n")


@pytest.fixture
def on_fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[HostState, FakeTransport]]:
    """The session of a host that answers nothing, and its transport. Pauses are short."""
    monkeypatch.setattr(reconnect, "PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(reconnect, "PAUSE_LAST_S", 0.01)
    transport = FakeTransport(agent(silent))
    monkeypatch.setattr(hosts, "transport_for", lambda host: transport)
    session = HostState(HOST._replace(name=f"lab8-{os.urandom(4).hex()}"))
    connection = session.connection
    yield session, transport
    connection.close()


def followed(session: HostState, job_id: str = "7f3a" * 4) -> Job[Any]:
    """A job that runs on that host, as it is followed after it was sent."""
    tracker = Tracker(session, job_id, "train")
    job: Job[Any] = Job(job_id, "train", session.host.name, tracker.folder, tracker)
    tracker.entry = entry_of(job)
    tracker.follow()
    tracker.taken(Started("b0:1:2"))
    tracker.queued()
    entry_of(job).set_state(RUNNING)
    return job


def in_a_group(session: HostState) -> JobGroup[Any, Any]:
    """A group of two items, one of which runs."""
    spec = JobSpec(
        id="90aa" * 4, name="train", host=session.host, root=session.root, bridge=session.bridge.folder,
        host_python="python3", resources=Resources(cores=1), interpreter=Interpreter("python3", (3, 11)),
        group=Group(count=2, chunk=1, elements=2, at_once=2),
    )  # fmt: skip
    known = GroupState(spec.id, spec.name, session.host.name, "/jobs/90aa", 2)
    tracker = GroupTracker(session, spec, known, SchedulerLimits())
    tracker.follow(range(1, 3))
    tracker.element_tasks[1].follow_now()
    tracker.queued()
    return JobGroup(known)


def of_a_session(session: HostState) -> SessionCallJob[Any]:
    """A call of a session of that host, which nothing follows yet."""
    held = followed(session, "c0de" * 4)
    holder, stream = entry_of(held).tracker, CallStream(session, held.folder, print)
    tracker = SessionCallTracker(holder, 1, "train", live=False, stream=stream)
    return SessionCallJob(held, payloads.pack(len, ("",), {}, None), tracker)


def in_a_session(session: HostState) -> SessionCallJob[Any]:
    """A call that a session of that host serves."""
    call = of_a_session(session)
    call.tracker.follow()
    return call


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
def test_a_waiting_caller_learns_at_once_why_the_connection_has_ended_for_good(
    on_fake: tuple[HostState, FakeTransport], waiter: Callable[[HostState], Any], reason: str
) -> None:
    session, transport = on_fake
    waits = waiter(session)
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


def test_a_connection_that_was_closed_is_not_opened_again_by_those_who_waited(
    on_fake: tuple[HostState, FakeTransport],
) -> None:
    session, transport = on_fake
    waits = [followed(session), in_a_group(session), in_a_session(session)]

    session.connection.close()

    with pytest.raises(HostError, match="was closed"):
        waits[0].result(150)
    until(lambda: all(each.state == UNKNOWN for each in waits))
    assert len(transport.commands) == 1


def test_the_error_of_a_lost_connection_names_the_job_and_what_to_do(on_fake: tuple[HostState, FakeTransport]) -> None:
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


Handler = Callable[[dict[str, Any], bytes], Iterable[tuple[dict[str, Any], bytes]]]


def answered(outcome: bytes, *value: bytes) -> Handler:
    """A host on which this is what the job's outcome says, and the pieces of its value."""

    def handler(request: dict[str, Any], body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        if "until" in request:
            yield {"content": True}, outcome
            yield from (({"file": 0, "size": 1}, piece) for piece in value)
            yield {"end": True, "ok": True}, b""

    return handler


def test_two_attempts_that_supersede_each_other_end_their_job(on_fake: tuple[HostState, FakeTransport]) -> None:
    session, transport = on_fake

    def superseded(request: dict[str, Any], body: bytes) -> Iterable[tuple[dict[str, Any], bytes]]:
        by = 1 if "attempts/2/" in request.get("until", "") else 2
        return answered(json.dumps({"kind": "superseded", "superseded_by": by}).encode())(request, body)

    transport.program.handler = superseded  # type: ignore[attr-defined]

    with pytest.raises(JobError, match="attempts \\[1, 2\\] name one another"):
        followed(session).result(150)


def test_a_host_that_sends_more_than_it_has_announced_fills_no_memory(on_fake: tuple[HostState, FakeTransport]) -> None:
    session, transport = on_fake
    sent = []

    def flood(request: dict[str, Any], body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        if "until" in request:
            yield {"content": True}, b'{"kind": "returned", "value": {"size": 123, "crc": 0}}'
            while not job_done.is_set():
                sent.append(1)
                yield {"file": 0, "size": 123}, bytes(100)

    job_done = threading.Event()
    transport.program.handler = flood  # type: ignore[attr-defined]
    job = followed(session)
    try:
        with pytest.raises(ResultError, match="more bytes arrived than the 123 that were written"):
            job.result(150)
    finally:
        job_done.set()
    assert sent


def test_a_value_that_does_not_fit_into_memory_stays_on_the_host(on_fake: tuple[HostState, FakeTransport]) -> None:
    session, transport = on_fake
    announced = json.dumps({"kind": "returned", "value": {"size": 2**60, "crc": 0}}).encode()
    transport.program.handler = answered(announced, b"x")  # type: ignore[attr-defined]

    with pytest.raises(ResultError, match="the value is 1048576 TB, and this machine has .* of free memory"):
        followed(session).result(150)


def test_what_a_failed_attempt_left_of_a_value_is_not_kept(on_fake: tuple[HostState, FakeTransport]) -> None:
    session, transport = on_fake
    transport.program.handler = answered(b'{"kind": "cancelled", "value": null}', b"half a value")  # type: ignore[attr-defined]

    with pytest.raises(Cancelled):
        followed(session).result(150)


def no_agent(words: str) -> HostError:
    error = HostError(words, host="lab8")
    error.kind = "missing"
    return error


def test_a_host_that_lets_in_and_starts_no_agent_is_tried_for_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(reconnect, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    tries, failing = reconnect.Tries(), iter([*3 * ["home"], "away", *3 * ["home"]])

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


def test_a_host_that_reboots_ends_no_wait(on_fake: tuple[HostState, FakeTransport]) -> None:
    session, transport = on_fake
    job = followed(session)
    states: list[str] = []
    session.connection.on_state(lambda state: states.append(state.cause))
    for words in ("nothing answers", "the shell does not start", "/home is not there"):
        transport.error = Unreachable(words) if words == "nothing answers" else no_agent(words)
        transport.drop()
        until(lambda words=words: states.count(words) >= 6)
    assert job.state == RUNNING
    transport.error = None
    transport.program.handler = answered(b'{"kind": "cancelled", "message": "stopped"}')  # type: ignore[attr-defined]

    with pytest.raises(Cancelled):
        job.result(150)


def test_a_call_of_a_lost_stream_gets_the_error_of_a_connection_that_has_ended(
    on_fake: tuple[HostState, FakeTransport],
) -> None:
    session, transport = on_fake
    call = of_a_session(session)
    call.tracker.send(b"", {}, lambda: None)
    request = session.connection.connect_socket("/s", b"", lambda _: None)
    request.add_done_callback(lambda reply: call.tracker.give_up(reply.exception(0)))
    opened = len(transport.streams)

    session.connection.close()

    with pytest.raises(HostError, match="was closed") as lost:
        call.result(30)
    assert lost.value.job == call.id
    assert len(transport.streams) == opened, "no other connection is opened for it"


def test_a_call_of_a_session_that_has_ended_keeps_no_value_for_the_garbage_collector(
    on_fake: tuple[HostState, FakeTransport],
) -> None:
    session, _ = on_fake
    call = of_a_session(session)
    entry_of(call).finish(RETURNED, "", lambda ended: ended.set_result(bytes(1 << 20)))
    kept = weakref.ref(call)

    gc.disable()
    try:
        del call
        assert kept() is None
    finally:
        gc.enable()
