"""Do the same for many jobs, some at a time, and say now and then how many are done."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

from clusterfn.calls import console
from clusterfn.hosts import exit_flush

T = TypeVar("T")
R = TypeVar("R")
MOST = 8  # each may keep a process of the host busy, whose administrators count them
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
                _answer(*left.get_nowait(), work)

    if len(answers) == 1:
        work_off()
    else:
        for _ in answers[:most]:  # an executor starts no threads while the interpreter exits
            exit_flush.run_in_thread(work_off, "clusterfn-at-once")
    due = time.monotonic() + TELL_EVERY_S
    try:
        for number, answer in enumerate(answers):
            while not answer.done() or time.monotonic() >= due:
                wait([answer], max(0.0, due - time.monotonic()))
                if time.monotonic() >= due:
                    due = time.monotonic() + TELL_EVERY_S
                    console.tell(f"{doing}: {number} of {len(answers)} done")
            given = time.monotonic()
            yield answer
            due += time.monotonic() - given  # the caller speaks for itself
    finally:
        with contextlib.suppress(queue.Empty):
            while True:
                left.get_nowait()


def _answer(answer: Future[R], thing: T, work: Callable[[T], R]) -> None:
    try:
        answer.set_result(work(thing))
    except BaseException as error:  # a thread's outermost frame: the one who waits gets it
        answer.set_exception(error)
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C: nothing more begins
