"""What a program waits for when it ends: jobs that it has just sent must have been started.

Also the threads for work that it does not wait for. A pool of concurrent.futures would keep the program from ending.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import contextvars
import functools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterfn.errors import ClusterfnError

if TYPE_CHECKING:
    from typing import Union

    from clusterfn.hosts.rpc.reply import Reply

    Answer = Union[Reply[Any], concurrent.futures.Future[Any]]

_EXIT_TIMEOUT_S = 60.0
_MOMENT_S, _LOOK_S = 1.0, 0.001
_IDLE_S = 10.0
# Maps the future of an answer to that answer, and to the seconds after which Python exits without it. The entry stays
# until the follow-up requests were sent.
unanswered: dict[concurrent.futures.Future[Any], tuple[Answer, float]] = {}
# Each function waits until the answers so far have led to all of their follow-up requests.
settlers: list[Callable[[], None]] = []


def await_at_exit(answer: Answer, timeout_s: float = _EXIT_TIMEOUT_S) -> None:
    """Delay the end of Python until `answer`, a reply or the future of a coroutine, is there, or for `timeout_s`.

    Whatever else waits for the answer must do so already.
    """
    finish_at_exit()
    _start_spare()
    future = answer if isinstance(answer, concurrent.futures.Future) else answer.future
    # Add the entry before the callback, which runs at once if the answer has come already.
    unanswered[future] = answer, timeout_s
    future.add_done_callback(_forget)


def _forget(future: concurrent.futures.Future[Any]) -> None:
    unanswered.pop(future, None)


_Inbox = queue.SimpleQueue[tuple[Callable[[], None], str]]
# The inboxes of threads that wait for work.
_idle: list[_Inbox] = []
# The inbox of one thread in reserve. Python starts no more threads once it exits, and work may still come then.
_spare: list[_Inbox] = []
if hasattr(os, "register_at_fork"):
    # A forked child has none of these threads, so it would hand its work to an inbox that no thread reads.
    os.register_at_fork(after_in_child=_idle.clear)
    os.register_at_fork(after_in_child=_spare.clear)
    # Answers go to the parent's connections, so a child that waits for them at its exit would wait in vain.
    os.register_at_fork(after_in_child=unanswered.clear)


def run_in_thread(work: Callable[[], None], name: str) -> None:
    """Run `work` in another thread, which waits for more: starting one takes a noticeable part of a short call.

    If the interpreter is exiting and starts no more threads, the main thread does it itself. Others leave it to the
    spare thread: they may be those that bring what the work waits for.
    """
    is_main = threading.current_thread() is threading.main_thread()
    with contextlib.suppress(IndexError):
        # At exit the main thread cannot leave work to others, because idle daemon threads may never run again.
        if not is_main or threading.main_thread().is_alive():
            _idle.pop().put((work, name))
            return
    inbox: _Inbox = queue.SimpleQueue()
    inbox.put((work, name))
    try:
        _start(inbox, name)
    except RuntimeError:
        if is_main or not _spare:
            work()
        else:
            _spare[0].put((work, name))


def _start_spare() -> None:
    if _spare:
        return
    inbox: _Inbox = queue.SimpleQueue()
    with contextlib.suppress(RuntimeError):
        # The interpreter may be exiting, or the machine may allow no
        # more threads. Then `run_in_thread` works without it.
        _start(inbox, "clusterfn-exit", is_spare=True)
        _spare.append(inbox)


def _start(inbox: _Inbox, name: str, *, is_spare: bool = False) -> None:
    threading.Thread(target=_work_off, args=(inbox, is_spare), name=name, daemon=True).start()


def _work_off(inbox: _Inbox, is_spare: bool) -> None:
    this, is_taken = threading.current_thread(), False
    while True:
        try:
            work, this.name = inbox.get(timeout=None if is_spare else _IDLE_S)
        except queue.Empty:
            try:
                _idle.remove(inbox)
                return
            except ValueError:
                # Another thread has just taken this inbox, so its work is about to
                # arrive. Ctrl-C may prevent that, so wait only once.
                if is_taken:
                    return
            is_taken = True
            continue
        is_taken = False
        try:
            # Use a fresh context, as a new thread has: callbacks of users may set context variables.
            contextvars.Context().run(work)
        except BaseException:  # noqa: BLE001 - as in a thread of its own: the next work must still be done
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), this)))
        # Drop the reference before the thread waits again, because the work may hold a large value.
        del work
        if not is_spare:
            _idle.append(inbox)
            this.name = "clusterfn-idle"


@functools.cache
def finish_at_exit() -> None:
    """Register `finish_all` with atexit.

    Registered when it is needed first, and so after the end of the connections: what is registered last runs first.
    """
    atexit.register(finish_all)


def finish_all() -> bool:
    """Wait for all of these answers, until Ctrl-C. Return whether none is missing."""
    with contextlib.suppress(KeyboardInterrupt):
        _finish_all()
    interrupted = bool(unanswered)
    unanswered.clear()
    return not interrupted


def has_unanswered() -> bool:
    """Return whether an answer is missing, or what the last answers lead to."""
    # An answer may lead to another request, so an empty table alone does not mean that nothing is left to do.
    for settle in settlers:
        settle()
    return bool(unanswered)


def _finish_all() -> None:
    begun = time.monotonic()
    while has_unanswered():
        # An entry may go at any moment.
        first = list(unanswered.items())[:1]
        if not first:
            continue
        future, (answer, timeout_s) = first[0]
        # Ignore errors here, because the job's own future reports them.
        with contextlib.suppress(ClusterfnError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            answer.exception(max(0.0, begun + timeout_s - time.monotonic()))
            # The answer wakes this thread before its callbacks have run, and one of them may send a follow-up request.
            # The last of them removes the entry.
            latest = time.monotonic() + _MOMENT_S
            while future in unanswered and time.monotonic() < latest:
                time.sleep(_LOOK_S)
        _forget(future)
