"""A project of the user's own, a machine whose sessions have a socket, and groups of jobs in memory."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterfn.calls import session_stream
from clusterfn.hosts import connection, exit_flush
from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.host_state import HostState
from clusterfn.hosts.rpc import link
from clusterfn.packing.project import modules
from tests.fakes.slurm_hosts import SlurmHosts, slurm_hosts
from tests.fakes.transport import FakeTransport, agent
from tests.unit.calls.groups import HOST, silent
from tests.waiting import WAIT_S


@pytest.fixture(autouse=True)
def _nothing_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test leaves unanswered is not what another waits for at its end; and each has modules of its own."""
    monkeypatch.setattr(exit_flush, "unanswered", {})
    monkeypatch.setattr(modules, "compiled_by_module", {})


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder on sys.path, as the script's own folder is; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def sent(tmp_path: Path, warm_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A configuration whose only host is this machine; the numbers of the calls that went through a socket."""
    path = tmp_path / "clusterfn.yml"
    path.write_text(f"hosts:\n  local:\n    scheduler: local\n    root: {warm_root}\n    limits: {{cores: 64}}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    numbers: list[int] = []
    send = session_stream.CallStream.send

    def noted(stream: session_stream.CallStream, number: int, *args: Any) -> bool:
        went = send(stream, number, *args)
        if went:
            numbers.append(number)
        return went

    monkeypatch.setattr(session_stream.CallStream, "send", noted)
    yield numbers


@pytest.fixture
def withdrawing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """What is called, one after another, when a call is withdrawn, before the host is asked for that."""
    then: list[Callable[[], object]] = []
    run = HostConnection.run

    def noted(connection: HostConnection, argv: Sequence[str], *rest: Any, **more: Any) -> Any:
        if "ln -s" in " ".join(argv) and then:
            then.pop()()
        return run(connection, argv, *rest, **more)

    monkeypatch.setattr(HostConnection, "run", noted)
    yield then


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., SlurmHosts]]:
    counts: list[int] = []  # each host has a name of its own: connections to those made before are kept

    with contextlib.ExitStack() as opened:

        def make(count: int, scheduler: str = "slurm", first: int = 0) -> SlurmHosts:
            counts.append(count)
            return opened.enter_context(slurm_hosts(monkeypatch, tmp_path, count, first + sum(counts[:-1]), scheduler))

        yield make


@pytest.fixture
def on_fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[HostState, FakeTransport]]:
    """The session of a host that answers nothing, and its transport. Pauses are short, and no stream lasts for long."""
    monkeypatch.setattr(link, "SOON_S", WAIT_S)
    monkeypatch.setattr(link, "PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(link, "PAUSE_LAST_S", 0.01)
    transport = FakeTransport(agent(silent))
    monkeypatch.setattr(connection, "transport_for", lambda host: transport)
    host_state = HostState(HOST._replace(name=f"lab8-{os.urandom(4).hex()}"))
    opened = host_state.connection
    yield host_state, transport
    opened.close()
