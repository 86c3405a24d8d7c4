"""Whether an allocation is held is asked again while calls come, and once at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from clusterfn.config.spec import Host
from clusterfn.hosts import connection as hosts
from clusterfn.hosts import host_state
from clusterfn.hosts.host_state import HostState
from tests.fakes.transport import FakeTransport, agent
from tests.waiting import until


def test_a_host_that_does_not_answer_is_asked_once_however_many_calls_come(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def handler(request: dict[str, Any], body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        if request["do"] == "have" and request["paths"]:
            asked.append(request)
        yield from ()

    program = agent(handler, have=[True, True])
    monkeypatch.setattr(hosts, "transport_for", lambda host: FakeTransport(program))
    monkeypatch.setattr(host_state, "HELD_S", 0.0)
    session = HostState(Host("box", f"box-{os.urandom(4).hex()}", "slurm", "clusterfn.yml:3"))

    assert [session.has_held_allocation for _ in range(50)] == [True] * 50

    session.connection.ping()
    until(lambda: any(request.get("paths") == [] for request in program.asked))
    assert len(asked) == 1
    session.connection.close()
