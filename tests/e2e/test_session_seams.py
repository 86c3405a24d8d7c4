"""Moments of sessions and actors that only a change of the client's own functions brings about."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from clusterfn import ActorLost, Cancelled, ExitedEarly, Session, WorkerLost
from clusterfn.calls import sending
from clusterfn.calls.session_stream import CallStream
from clusterfn.config.job_spec import JobSpec
from clusterfn.hosts.connection import HostConnection
from tests.e2e.test_session import wait_for_gate
from tests.fixtures.calls.actor_model import Model
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
def test_a_call_that_comes_as_its_idle_session_ends_says_that_it_did_not_run(monkeypatch: pytest.MonkeyPatch):
    session = Session(idle="1min")
    calls = calls_come_too_late(session, monkeypatch)
    late = session.submit(abs, -5)
    (calls / "close").touch()

    with pytest.raises(WorkerLost, match="the call had not begun when its session ended: it was closed") as caught:
        late.result(150)
    monkeypatch.undo()

    assert caught.value.hint == "call again: nothing of it has run"
    assert session.submit(abs, -5).result(150) == 5, "in another session"
    session.shutdown()


def test_a_call_whose_sending_was_interrupted_does_not_hold_up_the_next(here: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Session(idle="1min") as session:
        assert session.call(abs, -1) == 1
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(sending, "send_contents", interrupted)
            session.call(abs, -2)
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


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("here")
def test_an_actor_whose_sending_or_closing_was_interrupted_keeps_no_worker(monkeypatch: pytest.MonkeyPatch):
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
            patched.setattr(sending, "send_contents", interrupted)
            session.actor(Model, "not sent")
        assert session.submit(abs, -1).result(150) == 1
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(CallStream, "send", send_and_interrupt)
            session.actor(Model, "sent")
        assert session.submit(abs, -2).result(150) == 2

        model = session.actor(Model, "a")
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(sending, "send_contents", interrupted)
            model.close()
        with pytest.raises(ActorLost, match="it was closed"):
            model.predict(1)
        assert session.submit(abs, -3).result(150) == 3
