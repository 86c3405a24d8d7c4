"""A host in memory for the agent's client: how it answers, and what the tests of requests share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from clusterfn.config.spec import Host
from clusterfn.hosts.connection import HostConnection, Reply
from tests.fakes.transport import FakeTransport, Handler
from tests.waiting import WAIT_S, until

HOST = Host("lab8", "lab8", "bare", "clusterfn.yml:3")
OK = {"end": True, "ok": True}


def answering(request: dict[str, Any], body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Everything is well, at once."""
    if request["do"] != "chunk" or request.get("last"):
        yield OK, b""


def is_ping(request: dict[str, Any]) -> bool:
    return request.get("paths") == []


def silent(request: dict[str, Any], body: bytes) -> Iterable[tuple[dict[str, Any], bytes]]:
    return ()


def failing(kind: str, **more: Any) -> Handler:
    error = {"kind": kind, "message": "No such thing", "path": "/p", **more}
    return lambda request, body: [({"end": True, "ok": False, "error": error}, b"")]


def hold_back(transport: FakeTransport) -> threading.Event:
    """Nothing is written to the host until the event is set."""
    gate, stream = threading.Event(), transport.streams[0]
    write = stream.write
    stream.write = lambda data: write(data) if gate.wait(WAIT_S) else None  # type: ignore[method-assign]
    return gate


Connected = Callable[[Handler], tuple[HostConnection, FakeTransport]]


def refused(connected: Connected, error: Exception) -> tuple[HostConnection, FakeTransport, Reply[None]]:
    """A connection that has broken while a ping was open; from then on the host refuses each with this error."""
    connection, transport = connected(silent)
    asked = connection.ping()
    until(lambda: transport.program.asked)  # type: ignore[attr-defined]
    transport.error = error
    transport.drop()
    return connection, transport, asked
