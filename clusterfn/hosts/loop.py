"""The event loop of this process: conversations with hosts are coroutines in it, which read from top to bottom.

It has a thread of its own, so a loop that the user's program runs, such as a notebook's, is left alone. Nothing in this
thread may block: `in_thread` runs what does. A forked child starts with no loop, because the thread is its parent's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from clusterfn.errors import Unreachable
from clusterfn.hosts import exit_flush, spoken_wait

T = TypeVar("T")
_log = logging.getLogger("clusterfn")
_starting = threading.Lock()
# A coroutine takes fewer turns of the loop than this from an answer to its next question.
_TURNS = 20
_SETTLED_S = 5.0
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
# The event loop keeps only weak references to tasks, and Python could collect a task that waits.
_begun: set[asyncio.Task[None]] = set()


def start(story: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run a coroutine in the loop, from any thread; return its future, which may be cancelled."""
    return asyncio.run_coroutine_threadsafe(story, _running())


def begin(story: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that no caller awaits in the loop, from any thread; log what it raises.

    Thousands of jobs each have one: a future would take as much memory again.
    """
    call(_begin, story)


def _begin(story: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(story)
    _begun.add(task)
    task.add_done_callback(_end)


def result(running: concurrent.futures.Future[T], what: str, timeout_s: float) -> T:
    """Wait in the caller's thread for a coroutine, and say what for if that takes long; return its value.

    Raises:
        Unreachable: It has not ended within `timeout_s`; it continues.
    """
    if is_here():
        raise RuntimeError(f"{what}: this thread brings the answer, so it would wait forever")
    if not spoken_wait.wait_for([running], lambda: what, timeout_s):
        raise Unreachable(f"{what}: no answer within {timeout_s:g} s", retryable=True)
    return running.result()


def call(function: Callable[..., object], *args: Any) -> None:
    """Call a function in the loop, from any thread; at once in the loop's own."""
    if is_here():
        function(*args)
    else:
        _running().call_soon_threadsafe(function, *args)


def settle() -> None:
    """Wait until no coroutine of this moment can go on by itself: what it waits for next was asked for."""

    async def pass_turns() -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    if _loop is not None and not is_here():
        with contextlib.suppress(concurrent.futures.TimeoutError):
            # With thousands of jobs the loop may need longer. Exiting a little early is better than hanging.
            start(pass_turns()).exception(_SETTLED_S)


# At exit, an answer may still have to pass through coroutines before the next request is sent.
exit_flush.settlers.append(settle)


def is_here() -> bool:
    """Whether this is the thread of the loop."""
    return _thread is not None and _thread.ident == threading.get_ident()


async def in_thread(work: Callable[[], T], name: str) -> T:
    """Run what may block, or is the user's, in a thread with that name; a cancellation does not wait for its end."""
    ended: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - its thread's outermost frame: who waits must get the error
            ended.set_exception(error)
        else:
            ended.set_result(value)

    exit_flush.run_in_thread(run, name)
    # Without the shield, cancelling the coroutine would cancel the future, and the thread could not set its result.
    return await asyncio.shield(asyncio.wrap_future(ended))


def _running() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    with _starting:
        if _loop is None:
            new_loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_run, args=(new_loop,), name="clusterfn-loop", daemon=True)
            thread.start()
            # Publish the loop only after its thread runs: if no thread can
            # be started, no caller may wait for this loop.
            _loop, _thread = new_loop, thread
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _end(task: asyncio.Task[None]) -> None:
    _begun.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a conversation with a host failed", exc_info=error)


def _forget() -> None:
    global _loop, _thread, _starting
    # The parent's threads may have held the lock at the fork, so replace it.
    _loop, _thread, _starting = None, None, threading.Lock()
    _begun.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
