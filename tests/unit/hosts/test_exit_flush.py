"""Work in other threads: a thread stays for a moment, and nobody waits for one that is busy."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from clusterfn.hosts import exit_flush
from tests.waiting import WAIT_S, until


def ran_in(work: Callable[[], object] = lambda: None, name: str = "work") -> tuple[threading.Thread, str]:
    """Run it, and return the thread that did, with its name meanwhile."""
    found: list[tuple[threading.Thread, str]] = []
    over = threading.Event()

    def run() -> None:
        found.append((threading.current_thread(), threading.current_thread().name))
        over.set()
        work()

    exit_flush.run_in_thread(run, name)
    assert over.wait(WAIT_S)
    return found[0]


@pytest.fixture(autouse=True)
def no_thread_of_before() -> None:
    until(lambda: not exit_flush.idle_threads)


def idle(thread: threading.Thread) -> threading.Thread:
    until(lambda: bool(exit_flush.idle_threads) or not thread.is_alive())
    return thread


def test_a_thread_that_is_free_does_what_comes_next_under_its_name() -> None:
    first, name = ran_in(name="one")
    assert name == "one"
    second, name = ran_in(name="two") if idle(first) else (first, "")
    assert (second, name) == (first, "two")


def test_what_comes_while_all_are_busy_does_not_wait() -> None:
    release = threading.Event()
    first, _ = ran_in(lambda: release.wait(WAIT_S))
    second, _ = ran_in()
    release.set()
    assert second is not first


def test_a_thread_with_nothing_to_do_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_flush, "IDLE_S", 0.01)
    thread, _ = ran_in()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert ran_in()[0] is not thread


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_ends_its_thread_alone() -> None:
    thread, _ = ran_in(lambda: 1 / 0)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert ran_in()[0] is not thread


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    idle(ran_in()[0])
    pid = os.fork()
    if pid == 0:
        try:
            ran_in()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
