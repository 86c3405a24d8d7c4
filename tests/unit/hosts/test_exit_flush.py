"""Other threads: what delays the end of Python, and a program that submits faster than its host takes calls."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from clusterfn.calls import leaving, sending
from clusterfn.calls.job import run_of
from clusterfn.hosts import exit_flush, host_state, loop
from clusterfn.hosts.connection import HostConnection, TreeFile
from clusterfn.hosts.exit_flush import run_in_thread
from tests.fakes.session_calls import Calls, mapped
from tests.fakes.taken import taken
from tests.fakes.transport import FakeTransport, agent
from tests.unit.hosts.in_memory import HOST, OK, hold_back
from tests.waiting import replace_here, until


def test_work_that_waits_keeps_no_other_waiting():
    go, ended = threading.Event(), threading.Event()
    run_in_thread(lambda: go.wait(150), "clusterfn-test")
    try:
        run_in_thread(ended.set, "clusterfn-test")

        assert ended.wait(150)
    finally:
        go.set()


def test_work_is_done_here_if_no_thread_can_be_started():
    program = """
import threading
from clusterfn.hosts.exit_flush import run_in_thread

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

threading.Thread.start = refuse
run_in_thread(lambda: print(threading.current_thread().name), "clusterfn-test")
"""
    ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True, timeout=150)

    assert ran.stdout == "MainThread\n"


def test_answers_that_never_come_delay_the_end_of_python_once_and_not_one_after_another(monkeypatch):
    now, waited = [0.0], list[float]()

    class Missing(concurrent.futures.Future[None]):
        def exception(self, timeout: float | None = None) -> None:
            waited.append(timeout or 0.0)
            now[0] += timeout or 0.0
            raise concurrent.futures.TimeoutError if len(waited) <= 2 else KeyboardInterrupt

    replace_here(monkeypatch, time, "monotonic", lambda: now[0])
    missing = [Missing(), Missing()]
    monkeypatch.setattr(exit_flush, "unanswered", {each: (each, 60.0) for each in missing})

    exit_flush.finish_all()

    assert waited == [60.0, 0.0]

    monkeypatch.setattr(exit_flush, "unanswered", {missing[0]: (missing[0], 60.0)})
    assert [exit_flush.finish_all(), exit_flush.finish_all()] == [False, True]  # Ctrl-C ends it for good


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_that_stops_iterating_withdraws_nothing_of_its_parent(monkeypatch):
    monkeypatch.setattr(exit_flush, "run_in_thread", lambda work, _: work())
    calls = Calls()
    values = mapped(calls, [1, 2, 3])
    calls.end(0)
    assert next(values) == 10

    pid = os.fork()
    if not pid:
        values.close()  # type: ignore[attr-defined]
        loop.settle()
        os._exit(len(calls.withdrawn))
    assert os.waitpid(pid, 0)[1] == 0
    values.close()  # type: ignore[attr-defined]
    until(lambda: sorted(calls.withdrawn) == [2, 3])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_forked_child_has_threads_of_its_own_and_waits_for_nothing_that_its_parent_began():
    run_in_thread(lambda: None, "clusterfn-test")
    job, done = taken(), threading.Event()
    leaving.remember_going(run_of(job))
    host_state.open_host(HOST).contents.expect("/x", Mock(done=lambda: False))

    pid = os.fork()
    if not pid:
        try:
            run_in_thread(done.set, "clusterfn-test")
            assert done.wait(150)
            assert host_state.open_host(HOST).contents.unknown(["/x"]) == ["/x"]
            assert not leaving.known_jobs()
            with pytest.raises(RuntimeError, match=r"by another process: clusterfn\.attach"):
                job.exception()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


JOB = bytes(16 << 10)


@pytest.fixture
def connection() -> Iterator[Any]:
    """One whose host takes no bytes until `flows` is set."""
    transport = FakeTransport(agent(lambda request, body: [(OK, b"")] if request["do"] in ("put", "have") else []))
    made: Any = HostConnection(HOST, transport)
    made.flows = hold_back(transport)
    yield made
    made.flows.set()
    made.close()


def put(connection: HostConnection, number: int, data: bytes = JOB) -> Any:
    return connection.put_tree(f"/jobs/{number}", [TreeFile("payload.pkl", data)])


def test_what_is_queued_for_a_host_that_takes_nothing_is_bounded(connection: Any) -> None:
    count = 0
    while connection.link.has_room(0.0):
        put(connection, count)
        count += 1
        assert count * len(JOB) < 10 << 20
    assert count * len(JOB) > 4 << 20

    connection.flows.set()

    assert connection.link.has_room(150)


def test_a_large_file_on_its_way_leaves_room_for_small_calls(connection: Any) -> None:
    put(connection, 1, bytes(20 << 20))

    assert connection.link.has_room(0.0)


def test_a_program_that_waits_says_so_and_goes_on(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "REPORT_AFTER_S", 0.2)
    said: list[str] = []
    monkeypatch.setattr(sending.console, "tell", lambda line: (said.append(line), connection.flows.set()))
    for number in range(600):
        put(connection, number)

    sending.await_room(SimpleNamespace(connection=connection, settings=HOST))  # type: ignore[arg-type]

    assert said == ["waiting to send more calls to lab8: it takes them slowly"]


def test_a_closed_connection_keeps_nobody_waiting(connection: Any) -> None:
    for number in range(600):
        put(connection, number)
    assert not connection.link.has_room(0.0)
    threading.Timer(0.2, connection.close).start()

    assert connection.link.has_room(150)
