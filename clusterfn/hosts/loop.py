"""The event loop of this process: conversations with hosts are coroutines in it, which read from top to bottom.

It has a thread of its own, so a loop that the user's program runs, such as a notebook's, is left alone. Nothing in this
thread may block: `in_thread` runs what does. A forked child starts with no loop, because the thread is its parent's.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

from clusterfn.errors import ClusterfnError, Unreachable
from clusterfn.hosts import exit_flush, spoken_wait

T = TypeVar("T")
_log = logging.getLogger("clusterfn")
# A coroutine takes fewer turns of the loop than this from an answer to its next question.
_TURNS = 20
_SETTLED_S = 5.0
_STOP_S, _LOOK_S = 1.0, 0.001


class _Running(NamedTuple):
    """The loop and its thread."""

    loop: asyncio.AbstractEventLoop
    thread: threading.Thread


# Has one entry, for this process: of two threads that start a loop at the same time, `setdefault` keeps the first.
_started: dict[int, _Running] = {}
# The event loop keeps only weak references to tasks, and Python could collect a task that waits.
_begun: set[asyncio.Task[None]] = set()
# What `in_thread` runs now.
_in_threads: set[concurrent.futures.Future[Any]] = set()


def start(story: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run a coroutine in the loop, from any thread; return its future, which may be cancelled."""
    return asyncio.run_coroutine_threadsafe(story, _running())


def begin(story: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that no caller awaits in the loop, from any thread; log what it raises.

    Thousands of jobs each have one: a future would take as much memory again.
    """
    call(_begin, story)


def _begin(story: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    _begun.add(task := asyncio.ensure_future(_watched(story)))
    return task


async def _watched(story: Coroutine[Any, Any, None]) -> None:
    try:
        await story
    except Exception:  # noqa: BLE001 - the outermost frame of a conversation: the log gets the error
        _log.exception("a conversation with a host failed")
    finally:
        _begun.discard(cast("asyncio.Task[None]", asyncio.current_task()))


class Single:
    """A coroutine that runs once at a time, as it sees to all that waits."""

    def __init__(self, story: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self._story = story
        self._running: asyncio.Task[None] | None = None

    def begin(self, *args: Any) -> None:
        """Begin it, unless it runs; called in the loop alone."""
        if self._running is None or self._running.done():
            self._running = _begin(self._story(*args))


def result(running: concurrent.futures.Future[T], what: str, timeout_s: float) -> T:
    """Wait in this thread for a coroutine, and say for what; raise Unreachable after `timeout_s`: it continues."""
    if is_here():
        raise RuntimeError(f"{what}: this thread brings the answer, so it would wait forever")
    if not spoken_wait.wait_for_answer(running, lambda: what, timeout_s):
        raise Unreachable(f"{what}: no answer within {timeout_s:g} s", retryable=True)
    return running.result()


def call(function: Callable[..., object], *args: Any) -> None:
    """Call a function in the loop, from any thread; at once in the loop's own."""
    if is_here():
        function(*args)
    else:
        _running().call_soon_threadsafe(function, *args)


def settle(limit_s: float = _SETTLED_S) -> None:
    """Wait until no coroutine of this moment can go on by itself: what it waits for next was asked for."""

    async def pass_turns() -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    if os.getpid() in _started and not is_here():
        with contextlib.suppress(concurrent.futures.TimeoutError):
            # With thousands of jobs the loop may need longer. Exiting a little early is better than hanging.
            start(pass_turns()).exception(limit_s)


# At exit, an answer may still have to pass through coroutines before the next request is sent.
exit_flush.settlers.append(settle)


def is_here() -> bool:
    """Whether this is the thread of the loop."""
    running = _started.get(os.getpid())
    return running is not None and running.thread.ident == threading.get_ident()


async def in_thread(work: Callable[[], T], name: str) -> T:
    """Run what may block, or is the user's, in a thread with that name; a cancellation does not wait for its end."""
    ended: concurrent.futures.Future[T] = concurrent.futures.Future()
    _in_threads.add(ended)

    def run() -> None:
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - its thread's outermost frame: who waits must get the error
            ended.set_exception(error)
        else:
            ended.set_result(value)
        _in_threads.discard(ended)

    exit_flush.run_in_thread(run, name)
    # Without the shield, cancelling the coroutine would cancel the future, and the thread could not set its result.
    return await asyncio.shield(asyncio.wrap_future(ended))


def ask_at_once(
    hosts: Iterable[str], ask: Callable[[str], T]
) -> dict[str, concurrent.futures.Future[T | ClusterfnError]]:
    """Ask all hosts at the same time, for an answer or its error; one that is silent keeps nothing from ending."""

    def answer(host: str) -> T | ClusterfnError:
        try:
            return ask(host)
        except ClusterfnError as error:
            return error

    return {host: start(in_thread(functools.partial(answer, host), f"clusterfn-ask-{host}")) for host in hosts}


@contextlib.contextmanager
def speaking(describe: Callable[[], str]) -> Iterator[None]:
    """Say what is done in the block, as `spoken_wait.wait` does, where no future of it can be waited for."""
    if not spoken_wait.may_speak():
        yield
        return
    with spoken_wait.silence() as after_s:
        telling = start(_speak(describe, after_s))
        try:
            yield
        finally:
            telling.cancel()


async def _speak(describe: Callable[[], str], after_s: float) -> None:
    speaker = spoken_wait.Speaker()
    await asyncio.sleep(after_s)
    while True:
        # A terminal may block, and what it says may look at the host's files.
        await in_thread(lambda: speaker.say(describe()), "clusterfn-speaking")
        await asyncio.sleep(spoken_wait.SPEAK_AFTER_S)


def _running() -> asyncio.AbstractEventLoop:
    running = _started.get(os.getpid())
    if running is None:
        new_loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(new_loop,), name="clusterfn-loop", daemon=True)
        thread.start()
        # Publish the loop only after its thread runs: if no thread can
        # be started, no caller may wait for this loop.
        running = _started.setdefault(os.getpid(), _Running(new_loop, thread))
        if running.loop is not new_loop:
            new_loop.call_soon_threadsafe(new_loop.stop)
            thread.join()
            new_loop.close()
    return running.loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        # These exceptions of one conversation, or of what it runs in a thread, would end those with all hosts.
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
            return


def _stop() -> None:
    """Stop the loop at exit: a daemon thread that runs while the interpreter ends can crash the process.

    It is not closed, because other threads may still call functions in it, which then never run.
    """
    running = _started.get(os.getpid())
    if running is None or is_here():
        return
    # The connections are closed. What that has ended must still reach those who wait in exit functions after this one.
    until, before = time.monotonic() + _STOP_S, -1
    while (len(_begun) != before or _in_threads) and time.monotonic() < until:
        before = len(_begun)
        settle()
        time.sleep(_LOOK_S)
    running.loop.call_soon_threadsafe(running.loop.stop)
    running.thread.join(_STOP_S)
    # An exit function that comes later gets another loop.
    _started.clear()


# Registered at the import, and so before all that uses the loop at exit: what is registered last runs first.
atexit.register(_stop)


def _forget() -> None:
    _started.clear()
    _begun.clear()
    _in_threads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
