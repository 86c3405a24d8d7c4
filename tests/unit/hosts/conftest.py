"""Connections to hosts in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.rpc import link
from tests.fakes.transport import FakeTransport, Handler, agent
from tests.unit.hosts.in_memory import HOST


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Handler], tuple[HostConnection, FakeTransport]]]:
    """A connection to a fake host with this handler, and its transport. Reconnecting pauses are short."""
    monkeypatch.setattr(link, "PAUSE_FIRST_S", 0.01)
    opened: list[HostConnection] = []

    def make(handler: Handler) -> tuple[HostConnection, FakeTransport]:
        transport = FakeTransport(agent(handler))
        opened.append(HostConnection(HOST, transport))
        return opened[-1], transport

    yield make
    for connection in opened:
        connection.close()


@pytest.fixture
def logged_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set: `clusterfn login` holds a connection; it is looked for often."""
    there = threading.Event()
    monkeypatch.setattr("clusterfn.hosts.rpc.link.is_held", lambda host: there.is_set())
    monkeypatch.setattr("clusterfn.hosts.rpc.link.LOCAL_LOOK_S", 0.01)
    yield there
    there.set()
