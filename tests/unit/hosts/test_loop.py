"""The loop of this process at its edges: other threads, requests that are cancelled, and the end of Python."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from clusterfn.hosts import loop
from clusterfn.hosts.connection import HostConnection, Reply
from tests.fakes.transport import FakeTransport, agent
from tests.turns import settle
from tests.unit.hosts.in_memory import HOST, silent
from tests.waiting import WAIT_S

REPOSITORY = __file__.rpartition("/tests/")[0]


@pytest.fixture
def open_request() -> Iterator[Reply[Any]]:
    """A request that its host does not answer."""
    connection = HostConnection(HOST, FakeTransport(agent(silent)))
    yield connection.have(["/p"])
    connection.close()


def in_thread(request: Reply[Any]) -> Awaitable[Any]:
    """A thread that waits for it."""
    return loop.in_thread(lambda: request.result(WAIT_S), "clusterfn-test")


async def awaited(waiting: Awaitable[Any]) -> str:
    """Await it as a conversation with a host does."""
    try:
        await waiting
    except concurrent.futures.CancelledError:
        return "the request was cancelled"
    except asyncio.CancelledError:
        return "who waits for it was cancelled"
    return "answered"


@pytest.mark.parametrize("wait", [lambda request: request, in_thread], ids=["itself", "in a thread"])
def test_a_request_that_is_cancelled_cancels_no_conversation_that_waits_for_it(open_request, wait):
    waits = loop.start(awaited(wait(open_request)))
    settle()

    open_request.cancel()

    assert loop.result(waits, "waiting", WAIT_S) == "the request was cancelled"


def test_a_conversation_that_is_cancelled_cancels_its_request(open_request: Reply[Any]) -> None:
    waits = loop.start(awaited(open_request))
    settle()

    waits.cancel()

    assert isinstance(open_request.exception(WAIT_S), concurrent.futures.CancelledError)


def test_the_thread_of_the_loop_learns_that_it_cannot_wait_for_itself() -> None:
    async def wait() -> None:
        other: concurrent.futures.Future[None] = concurrent.futures.Future()
        loop.result(other, "waiting for the host", WAIT_S)

    with pytest.raises(RuntimeError, match="waiting for the host: this thread brings the answer"):
        loop.start(wait()).result(WAIT_S)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("is_in_thread", [True, False])
def test_an_exception_that_ends_a_conversation_ends_no_other(kind: type[BaseException], is_in_thread: bool) -> None:
    def fail() -> None:
        raise kind

    async def talk() -> None:
        if is_in_thread:
            await loop.in_thread(fail, "clusterfn-test")
        fail()

    with pytest.raises(kind):
        loop.start(talk()).result(WAIT_S)

    assert loop.start(awaited(asyncio.sleep(0))).result(WAIT_S) == "answered"


# Each kind of wait that a conversation may be in when Python ends.
ENDS = """
import asyncio, concurrent.futures, sys, threading
from clusterfn.hosts import exit_flush, loop
from clusterfn.hosts.connection import Reply

async def sleeps(): await asyncio.sleep(600)
kept = Reply(lambda: None)
async def asks(): await kept
async def awaits_thread(): await loop.in_thread(threading.Event().wait, "clusterfn-test")

for story in (sleeps, asks, awaits_thread):
    loop.begin(story())
    loop.start(story())
loop.settle()
"""


def test_a_program_that_ends_while_conversations_wait_ends_at_once_and_says_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, cwd=REPOSITORY, timeout=WAIT_S)

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# Python 3.12 starts no more threads once it is exiting; here no version does.
WORK_AT_EXIT = """
import threading
from clusterfn.hosts import exit_flush, loop
from clusterfn.hosts.connection import Reply

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

def fail():
    raise ValueError("no")

def wait_for_host():
    print(loop.start(answer()).result(100), threading.current_thread().name)
    done.set()

async def answer():
    return "answered"

async def bring():
    exit_flush.run_in_thread(fail, "clusterfn-outcome")
    exit_flush.run_in_thread(wait_for_host, "clusterfn-outcome")

done = threading.Event()
loop.call(lambda: None)
exit_flush.await_at_exit(Reply(lambda: None), 0.1)
threading.Thread.start = refuse
loop.begin(bring())
print(done.wait(100))
"""


def test_work_that_an_answer_leads_to_at_the_end_of_python_keeps_no_conversation_waiting() -> None:
    argv = [sys.executable, "-c", WORK_AT_EXIT]
    ran = subprocess.run(argv, capture_output=True, text=True, cwd=REPOSITORY, timeout=WAIT_S)

    assert ran.stdout == "answered clusterfn-exit\nTrue\n", ran.stderr
    assert ran.stderr.strip().endswith("ValueError: no"), "what failed is told, and keeps the next from nothing"
