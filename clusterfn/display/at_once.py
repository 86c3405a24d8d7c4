"""Do the same for many jobs, some at a time, and say now and then how many are done."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

from clusterfn.display import console
from clusterfn.hosts import exit_flush

T = TypeVar("T")
R = TypeVar("R")
# Each of these may keep a process of the host busy, and login nodes limit the processes of a user.
MOST = 8
TELL_EVERY_S = 8.0


def at_once(things: Sequence[T], work: Callable[[T], R], doing: str, most: int = MOST) -> Iterator[Future[R]]:
    """Do `work` with each of these, in threads; yield what became of each, in their order.

    What has not begun never does if the caller takes no more, as after Ctrl-C. One thing is done in this thread.

    Args:
        doing: What is done, for the lines that say how far it is: "cancelling jobs".
        most: How many at a time.
    """
    answers: list[Future[R]] = [Future() for _ in things]
    left: queue.SimpleQueue[tuple[Future[R], T]] = queue.SimpleQueue()
    for pair in zip(answers, things):
        left.put(pair)

    def work_off() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                answer, thing = left.get_nowait()
                try:
                    answer.set_result(work(thing))
                except BaseException as error:  # `work` may raise anything
                    # This is the outermost frame of a thread: the caller that waits for the answer gets the error.
                    answer.set_exception(error)
                    if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                        # Ctrl-C in the main thread begins nothing more.
                        raise

    if len(answers) == 1:
        work_off()
    else:
        # A ThreadPoolExecutor starts no threads while the interpreter exits, and jobs may be withdrawn then.
        for _ in answers[:most]:
            exit_flush.run_in_thread(work_off, "clusterfn-at-once")
    due = time.monotonic() + TELL_EVERY_S
    try:
        for number, answer in enumerate(answers):
            while not answer.done() or time.monotonic() >= due:
                wait([answer], max(0.0, due - time.monotonic()))
                if time.monotonic() >= due:
                    due = time.monotonic() + TELL_EVERY_S
                    console.tell(f"{doing}: {number} of {len(answers)} done")
            yielded_at = time.monotonic()
            yield answer
            # The caller shows its own progress while it has the answer, so that time does not count.
            due += time.monotonic() - yielded_at
    finally:
        with contextlib.suppress(queue.Empty):
            while True:
                left.get_nowait()
