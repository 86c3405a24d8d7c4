"""Work in other threads, and what delays the end of Python."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import threading
import time

import pytest

from clusterfn.hosts import exit_flush, loop
from clusterfn.hosts.exit_flush import run_in_thread
from tests.fakes.session_calls import Calls, mapped
from tests.waiting import replace_here, until


def test_work_that_waits_keeps_no_other_waiting():
    go, ended = threading.Event(), threading.Event()
    run_in_thread(lambda: go.wait(150), "clusterfn-test")
    try:
        run_in_thread(ended.set, "clusterfn-test")

        assert ended.wait(150)
    finally:
        go.set()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_forked_child_has_threads_of_its_own():
    run_in_thread(lambda: None, "clusterfn-test")
    pid = os.fork()
    if pid == 0:
        done = threading.Event()
        run_in_thread(done.set, "clusterfn-test")
        os._exit(0 if done.wait(150) else 1)
    assert os.waitpid(pid, 0)[1] == 0


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
            raise concurrent.futures.TimeoutError

    replace_here(monkeypatch, time, "monotonic", lambda: now[0])
    missing = [Missing(), Missing()]
    monkeypatch.setattr(exit_flush, "unanswered", {each: (each, 60.0) for each in missing})

    exit_flush.finish_all()

    assert waited == [60.0, 0.0]


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
