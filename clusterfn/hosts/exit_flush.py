"""What a program waits for when it ends: jobs that it has just sent must have been started, and folders be removed.

Also the threads for work that it does not wait for. A pool of concurrent.futures would keep the program from ending.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import functools
import os
import posixpath
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterfn.bridge import layout
from clusterfn.errors import ClusterfnError, HostError

if TYPE_CHECKING:
    from clusterfn.hosts.connection import HostConnection, Reply

_EXIT_TIMEOUT_S = 60.0
_REMOVAL_TIMEOUT_S = 5.0
_MOMENT_S = 1.0
_IDLE_S = 10.0
_REMOVE = '{ rm -rf -- "$2" && mv -- "$1" "$2"; } 2>/dev/null; rm -rf -- "$2"'
# -> seconds after which Python ends all the same, and whether all that the answer leads to has been asked for
unanswered: dict[Reply[Any], tuple[float, threading.Event]] = {}


def await_at_exit(reply: Reply[Any], timeout_s: float = _EXIT_TIMEOUT_S) -> None:
    """Delay the end of Python until `reply` has its answer, or for `timeout_s`. Add its other callbacks first."""
    finish_at_exit()
    told = threading.Event()

    def answered(reply: Reply[Any]) -> None:
        unanswered.pop(reply, None)
        told.set()

    unanswered[reply] = (timeout_s, told)
    reply.add_done_callback(answered)


def remove_folder(connection: HostConnection, folder: str) -> None:
    """Remove the folder of a job that never was, also where the program ends at once. Ignore a lost connection."""
    with contextlib.suppress(HostError):
        await_at_exit(connection.run(removal_command(folder)), _REMOVAL_TIMEOUT_S)


def removal_command(folder: str) -> list[str]:
    """Return the command that removes a folder of a host, after it has renamed it.

    Renamed first: a late write into it, such as a conclusion, fails and cannot restore it. A removal that is cut short,
    as by the end of the program, leaves nothing that is taken for the whole.
    """
    aside = posixpath.join(posixpath.dirname(folder), layout.REMOVED + posixpath.basename(folder))
    return ["/bin/sh", "-c", _REMOVE, "sh", folder, aside]


_Inbox = queue.SimpleQueue[tuple[Callable[[], None], str]]
_idle: list[_Inbox] = []  # of threads that wait for work
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a forked child has none of these threads


def run_in_thread(work: Callable[[], None], name: str) -> None:
    """Run `work` in another thread, or in this one if the interpreter is exiting and starts no more threads.

    A thread that has done its work waits for more, because starting one takes a noticeable part of a short call.
    """
    with contextlib.suppress(IndexError):
        if threading.main_thread().is_alive():  # else the interpreter is exiting, and these threads may not run again
            _idle.pop().put((work, name))
            return
    inbox: _Inbox = queue.SimpleQueue()
    inbox.put((work, name))
    try:
        threading.Thread(target=_work_off, args=(inbox,), name=name, daemon=True).start()
    except RuntimeError:
        work()


def _work_off(inbox: _Inbox) -> None:
    this, is_taken = threading.current_thread(), False
    while True:
        try:
            work, this.name = inbox.get(timeout=_IDLE_S)
        except queue.Empty:
            try:
                _idle.remove(inbox)
                return
            except ValueError:  # it was taken in this moment: its work comes, unless Ctrl-C came first
                if is_taken:
                    return
            is_taken = True
            continue
        is_taken = False
        contextvars.Context().run(work)  # as in a new thread: callbacks of users may set variables
        del work  # it may hold a large value
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


def _finish_all() -> None:
    begun = time.monotonic()
    while unanswered:  # an answer may lead to a request
        reply, (timeout_s, told) = next(iter(unanswered.items()))
        with contextlib.suppress(ClusterfnError):  # the job's own future has it
            reply.exception(max(0.0, begun + timeout_s - time.monotonic()))
            told.wait(_MOMENT_S)
        unanswered.pop(reply, None)
