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


# The work of one thread in reserve. Python starts no more threads once it exits, and work may still come then.
_spare: list[queue.SimpleQueue[Callable[[], None]]] = []
if hasattr(os, "register_at_fork"):
    # A forked child has no such thread, so it would hand its work to one that does not exist.
    os.register_at_fork(after_in_child=_spare.clear)
    # Answers go to the parent's connections, so a child that waits for them at its exit would wait in vain.
    os.register_at_fork(after_in_child=unanswered.clear)


def run_in_thread(work: Callable[[], None], name: str) -> None:
    """Run `work` in another thread.

    If the interpreter is exiting and starts no more threads, the main thread does it itself. Others leave it to the
    spare thread: they may be those that bring what the work waits for.
    """
    # Use a fresh context: callbacks of users may set context variables.
    context = contextvars.Context()

    def run() -> None:
        context.run(work)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        if threading.current_thread() is threading.main_thread() or not _spare:
            run()
        else:
            _spare[0].put(run)


def _start_spare() -> None:
    if _spare:
        return
    inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    with contextlib.suppress(RuntimeError):
        # The interpreter may be exiting, or the machine may allow no
        # more threads. Then `run_in_thread` works without it.
        threading.Thread(target=_work_off, args=(inbox,), name="clusterfn-exit", daemon=True).start()
        _spare.append(inbox)


def _work_off(inbox: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        try:
            inbox.get()()
        except BaseException:  # noqa: BLE001 - as in a thread of its own: the next work must still be done
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


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
