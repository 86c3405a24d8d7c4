"""What ends the wait for jobs of a host that is away, or answers with what makes no sense."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from clusterfn import Cancelled, HostError, JobError, Unreachable
from tests.fakes.transport import FakeTransport
from tests.unit.calls.waiters import answered, followed, in_a_group, in_a_session, no_agent, of_a_session
from tests.waiting import until


def test_a_connection_that_was_closed_is_not_opened_again_by_those_who_waited(
    on_fake: tuple[Any, FakeTransport],
) -> None:
    session, transport = on_fake
    waits = [followed(session), in_a_group(session), in_a_session(session)]

    session.connection.close()

    with pytest.raises(HostError, match="was closed"):
        waits[0].result(150)
    until(lambda: all(each.state == "UNKNOWN" for each in waits))
    assert len(transport.commands) == 1


def test_the_error_of_a_lost_connection_names_the_job_and_what_to_do(on_fake: tuple[Any, FakeTransport]) -> None:
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


def test_two_attempts_that_supersede_each_other_end_their_job(on_fake: tuple[Any, FakeTransport]) -> None:
    session, transport = on_fake

    def superseded(request: dict[str, Any], body: bytes) -> Iterable[tuple[dict[str, Any], bytes]]:
        by = 1 if "attempts/2/" in request.get("until", "") else 2
        return answered(json.dumps({"kind": "superseded", "superseded_by": by}).encode())(request, body)

    transport.program.handler = superseded  # type: ignore[attr-defined]

    with pytest.raises(JobError, match="attempts \\[1, 2\\] name one another"):
        followed(session).result(150)


def test_what_a_failed_attempt_left_of_a_value_is_not_kept(on_fake: tuple[Any, FakeTransport]) -> None:
    session, transport = on_fake
    transport.program.handler = answered(b'{"kind": "cancelled", "value": null}', b"half a value")  # type: ignore[attr-defined]

    with pytest.raises(Cancelled):
        followed(session).result(150)


def test_a_host_that_reboots_ends_no_wait(on_fake: tuple[Any, FakeTransport]) -> None:
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


def test_a_call_of_a_lost_stream_gets_the_error_of_a_connection_that_has_ended(
    on_fake: tuple[Any, FakeTransport],
) -> None:
    session, transport = on_fake
    call = of_a_session(session)
    call.source.send(b"", {}, lambda: None)
    request = session.connection.connect_socket("/s", b"", lambda _: None)
    request.future.add_done_callback(lambda ended: call.source.give_up(ended.exception(0)))
    opened = len(transport.streams)

    session.connection.close()

    with pytest.raises(HostError, match="was closed") as lost:
        call.result(30)
    assert lost.value.job == call.id
    assert len(transport.streams) == opened, "no other connection is opened for it"
