"""Moments of sessions and actors that only a change of the client's own functions brings about."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterfn import (
    ActorLost,
    Cancelled,
    ConfigError,
    ExitedEarly,
    HostError,
    KilledBySignal,
    Session,
    Unreachable,
    Unsatisfiable,
)
from clusterfn.calls import job_display, submit
from clusterfn.calls.job import entry_of
from clusterfn.calls.session_stream import CallStream
from clusterfn.calls.session_tracker import SessionCallJob, SessionCallTracker
from clusterfn.config.job_spec import JobSpec
from clusterfn.hosts.connection import Completed, HostConnection, Reply
from tests.e2e.test_actor import has_room
from tests.e2e.test_session import process, wait_for_gate
from tests.fixtures.calls.actor_model import Model
from tests.turns import settle
from tests.waiting import until


def calls_come_too_late(session: Session, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have calls arrive beside where the session looks, as if they came after its last look; return where it looks.

    Nothing is stopped for that: the supervisor of a session wakes its programs.
    """
    session.call(abs, -1)
    assert session.job is not None
    calls, put_tree = Path(session.job.folder) / "calls", HostConnection.put_tree

    def put_beside(connection: HostConnection, path: str, *given: Any, **more: Any) -> Any:
        return put_tree(connection, f"{path}.late" if Path(path).parent == calls else path, *given, **more)

    monkeypatch.setattr("clusterfn.calls.session_stream.MOST_BYTES", -1)  # the calls go as files
    monkeypatch.setattr(HostConnection, "put_tree", put_beside)
    return calls


def chatter(lines: int) -> str:
    for number in range(lines):
        os.write(1, b"%09d\n" % number)
    os.write(2, b"the last words\n" * 20)
    return "value"


def chatter_and_die(lines: int) -> None:
    chatter(lines)
    os._exit(3)


for travels_by_value in (chatter, chatter_and_die):
    travels_by_value.__module__ = "__main__"


@pytest.mark.usefixtures("here")
def test_a_call_keeps_no_more_output_than_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    whole = JobSpec.to_json
    monkeypatch.setattr(JobSpec, "to_json", lambda job: whole(job._replace(log_limit_bytes=200)))

    with Session() as session:
        job = session.submit(chatter, 50_000)
        assert job.result(150) == "value"
        with pytest.raises(ExitedEarly) as caught:
            session.call(chatter_and_die, 10)

    kept = b"".join(b"%09d\n" % number for number in range(20))
    lost = b"\n[clusterfn: 499800 more bytes were not kept: log_limit_bytes is 200]\n"
    assert job.logs().encode() == kept + lost
    assert "499800 more bytes were not kept" in " ".join(job.notes)
    assert caught.value.evidence[-1] == "the last words"


@pytest.mark.usefixtures("here")
def test_a_call_that_waits_for_another_of_its_session_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gate, said, why_silent = tmp_path / "gate", set[str](), SessionCallTracker.why_silent

    def asked(tracker: SessionCallTracker) -> str:
        told = why_silent(tracker)
        said.add(told)
        gate.touch()
        return told

    with Session() as session:
        session.call(abs, -1)
        monkeypatch.setattr(SessionCallTracker, "why_silent", asked)
        monkeypatch.setattr("clusterfn.hosts.spoken_wait.SPEAK_AFTER_S", 0.0)
        session.submit(wait_for_gate, str(gate))
        session.call(process)

    assert "1 earlier call of its session has not ended" in said


def test_calls_that_are_moved_to_another_session_keep_their_order(here: Path, monkeypatch: pytest.MonkeyPatch):
    session = Session(idle="1min")
    calls = calls_come_too_late(session, monkeypatch)
    moved = [session.submit(abs, -number) for number in range(6)]
    (calls / "close").touch()
    assert [call.result(150) for call in moved] == [*range(6)]
    session.shutdown()

    assert [Path(call.folder).name for call in moved] == ["1", "2", "3", "4", "5", "6"]


class PackedUntil:
    """An argument that is packed, as an int, only when the job of its session has ended."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __reduce__(self) -> tuple[Any, ...]:
        assert self.session.job is not None and self.session.job.result(150)["why"] == "idle"
        return int, ("7",)


@pytest.mark.usefixtures("here")
def test_a_session_is_prepared_under_its_own_name_and_not_that_of_its_first_call(monkeypatch: pytest.MonkeyPatch):
    named: list[str] = []
    monkeypatch.setattr(job_display, "preparing", lambda name: contextlib.nullcontext(named.append(name)))

    with Session() as session:
        assert session.call(abs, -1) == 1

    assert named == ["session", "abs"]


def test_a_call_that_no_other_session_can_take_gets_the_error_of_that(here: Path, monkeypatch: pytest.MonkeyPatch):
    session = Session(idle="1s")
    assert session.call(abs, -1) == 1

    def unsatisfiable(*_: object) -> None:
        raise Unsatisfiable("no such environment")

    monkeypatch.setattr("clusterfn.api.session.prepare_packed", unsatisfiable)
    assert isinstance(session.submit(abs, PackedUntil(session)).exception(150), Unsatisfiable)


def test_a_call_whose_end_is_on_the_host_gets_that_even_if_others_cannot_be_moved(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    session = Session(idle="1min")
    calls = calls_come_too_late(session, monkeypatch)
    ended, unserved = session.submit(abs, -2), session.submit(abs, -3)
    have = HostConnection.have

    def have_of_one(connection: HostConnection, paths: Sequence[str], **more: Any) -> Any:
        """As if the end of one call were on its way when all of them are looked for."""
        return have(connection, ["/" if path.endswith("/calls/2/outcome.json") else path for path in paths], **more)

    def unsatisfiable(*_: object) -> None:
        raise Unsatisfiable("no such environment")

    monkeypatch.setattr(HostConnection, "have", have_of_one)
    monkeypatch.setattr("clusterfn.api.session.prepare_packed", unsatisfiable)
    (calls / "close").touch()

    assert isinstance(unserved.exception(150), Unsatisfiable)
    attempt = calls / "2"
    attempt.mkdir()
    (attempt / "outcome.new").write_text('{"kind": "cancelled", "message": "it has ended", "stage": "queue"}')
    (attempt / "outcome.new").rename(attempt / "outcome.json")
    assert isinstance(ended.exception(150), Cancelled)
    monkeypatch.undo()
    session.shutdown()


def test_a_call_that_is_moved_to_a_session_whose_worker_has_an_actor_meanwhile_is_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    have, is_going, late = HostConnection.have, threading.Event(), list[str]()

    async def answer_late(reply: Reply[list[bool]]) -> list[bool]:
        await asyncio.get_running_loop().run_in_executor(None, is_going.wait, 150)
        return await reply

    def have_late(connection: HostConnection, paths: Sequence[str], **more: Any) -> Any:
        # Which moves the calls. The second session may be idle as well before the actor is sent: it moves that at once.
        if not late and any(path.endswith("/calls/2/outcome.json") for path in paths):
            late.append("first")
            return answer_late(have(connection, paths, **more))
        return have(connection, paths, **more)

    monkeypatch.setattr(HostConnection, "have", have_late)
    with Session(idle="1s") as session:
        assert session.call(abs, -1) == 1
        call = session.submit(abs, PackedUntil(session))
        model = session.actor(Model, "a")
        is_going.set()

        with pytest.raises(ConfigError, match=r"no worker for abs: its only worker has the actor \(Model\)"):
            call.result(150)
        assert model.predict(1) == 2


def test_a_call_that_was_taken_before_shutdown_is_served_even_if_its_session_has_just_ended(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    session = Session(idle="1min")  # long: `shutdown` ends it
    calls_come_too_late(session, monkeypatch)
    first = session.job
    call = session.submit(abs, -5)
    session.shutdown(wait=False)

    assert call.result(150) == 5
    assert session.job is not first
    session.shutdown()
    assert session.job is not None and session.job.result(0)["why"] == "closed"


def test_a_call_whose_sending_was_interrupted_does_not_hold_up_the_next(here: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Session(idle="1min") as session:
        assert session.call(abs, -1) == 1
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(submit, "send_contents", interrupted)
            session.call(abs, -2)
        assert session.submit(abs, -3).result(150) == 3


@pytest.mark.usefixtures("here")
def test_numbers_to_skip_are_sent_again_only_once_the_host_has_answered(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[Sequence[str], Reply[Completed]]] = []
    run = HostConnection.run

    def held(connection: HostConnection, argv: Sequence[str], *rest: Any, **more: Any) -> Any:
        if not argv[2].startswith("mkdir"):
            return run(connection, argv, *rest, **more)
        asked.append((argv, Reply(lambda: None)))
        return asked[-1][1]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Session() as session:
        assert session.call(abs, -1) == 1
        with monkeypatch.context() as patched:
            patched.setattr(HostConnection, "run", held)
            patched.setattr(submit, "send_contents", interrupted)
            for _ in range(201):
                with pytest.raises(KeyboardInterrupt):
                    session.call(abs, -2)
                settle()
            assert len(asked) == 1
            refused = Completed(1, None, b"", b"no space left on device")
            asked[0][1].resolve(refused)
            settle()
            assert [len(argv[4:]) for argv, _ in asked] == [1, 200], "those that came meanwhile go all the same"
            asked[1][1].resolve(refused)
            settle()
            assert len(asked) == 2
            until(lambda: len(asked) == 3)  # a call that is behind them waits for them
            asked[2][1].reject(HostError("sh took longer than 60 s"))
        assert session.submit(abs, -3).result(150) == 3


@pytest.mark.usefixtures("here")
def test_a_call_is_withdrawn_in_one_step_which_may_be_taken_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gate, put, run = tmp_path / "gate", HostConnection.put, HostConnection.run
    with Session() as session:
        first = session.submit(wait_for_gate, str(gate))
        stopped, withdrawn = session.submit(abs, -2), session.submit(abs, -3)
        until(lambda: first.state == "RUNNING")

        def late(connection: HostConnection, *each: Any, **more: Any) -> Any:
            """The turn of the call comes before this request."""
            gate.touch()
            assert isinstance(stopped.exception(150), Cancelled)
            return put(connection, *each, **more)

        def twice(connection: HostConnection, *each: Any, **more: Any) -> Any:
            """As after a loss of the connection."""
            run(connection, *each, **more).result(150)
            return run(connection, *each, **more)

        monkeypatch.setattr(HostConnection, "run", twice)
        assert withdrawn.cancel()
        monkeypatch.setattr(HostConnection, "put", late)
        stopped.stop()
        monkeypatch.undo()
        gate.touch()

        assert isinstance(stopped.exception(150), Cancelled)
        assert session.submit(abs, -4).result(150) == 4
        assert session.job is not None
    assert session.job.result(150)["calls"] == 2, "neither of them ran"


def test_calls_of_an_actor_go_by_files_where_there_is_no_stream(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("clusterfn.calls.session_stream.MOST_BYTES", -1)

    with Session() as session:
        model = session.actor(Model, "a")
        jobs = [model.predict.submit(number) for number in range(3)]
        assert [job.result(150) for job in jobs] == [0, 2, 4]
        assert model.history() == [0, 1, 2], "a method that prints nothing"
        with pytest.raises(KilledBySignal, match="SIGTERM"):
            model.kill(signal.SIGTERM)
        with pytest.raises(ActorLost):
            model.predict(1)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("here")
def test_an_actor_whose_sending_was_interrupted_keeps_no_worker_and_one_whose_closing_was_can_be_closed(
    monkeypatch: pytest.MonkeyPatch,
):
    sent, went_through_the_stream = CallStream.send, [False]

    def send_and_note(*each: Any) -> bool:
        went_through_the_stream.append(sent(*each))
        return went_through_the_stream[-1]

    def send_and_interrupt(*each: Any) -> None:
        assert sent(*each)
        raise KeyboardInterrupt

    with Session() as session:
        session.actor(Model, "whose module the host has from now on").close()
        with monkeypatch.context() as patched:
            patched.setattr(CallStream, "send", send_and_note)
            until(lambda: session.submit(abs, -1).result(150) == 1 and went_through_the_stream[-1])
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(submit, "send_contents", interrupted)
            session.actor(Model, "not sent")
        assert session.submit(abs, -1).result(150) == 1
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(CallStream, "send", send_and_interrupt)
            session.actor(Model, "sent")
        assert session.submit(abs, -2).result(150) == 2

        model = session.actor(Model, "a")
        for name, which in ((submit, "send_contents"), (CallStream, "send")):
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(name, which, interrupted)
                model.close()
            assert model.predict(1) == 2
        assert model.close() == 2
        assert session.submit(abs, -3).result(150) == 3


def lost(call: SessionCallJob[Any], *_: object) -> None:
    entry_of(call).lose(Unreachable("log in again"))
    call.result(150)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("ends", "error"), [(interrupted, KeyboardInterrupt), (lost, Unreachable)])
def test_an_actor_that_nobody_has_when_it_is_constructed_is_closed(
    ends: Callable[..., None], error: type[BaseException], monkeypatch: pytest.MonkeyPatch
):
    """Whatever ends the waiting for it: a signal's handler, or the loss of the connection."""
    with Session() as session:
        with monkeypatch.context() as patched, pytest.raises(error):
            patched.setattr(job_display, "result", ends)
            session.actor(Model, "a")
        assert session.submit(abs, -1).result(150) == 1


@pytest.mark.usefixtures("here")
def test_an_actor_that_nothing_refers_to_is_closed_with_the_next_call_if_the_host_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
):
    was_asked = threading.Event()

    def unreachable(*_: object) -> None:
        was_asked.set()
        raise Unreachable("log in again")

    with Session() as session:
        model = session.actor(Model, "a")
        assert model.predict(1) == 2
        with monkeypatch.context() as patched:
            patched.setattr(submit, "send_contents", unreachable)
            del model
            gc.collect()
            assert was_asked.wait(150)
        until(lambda: has_room(session))
