"""Wait for something, and say what for if that takes longer than some seconds: no public call waits without a word.

Only the main thread speaks, as others work for it, and work of other threads that has called `speak_here`. The
sentences are printed by what `speak_by` was given.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

SPEAK_AFTER_S = 5.0
# A job that starts sooner than this needs no explanation of why it waited.
REASON_AFTER_S = 3.0
# Sentences that differ only in numbers are repeated this often.
AGAIN_S = 60.0
# A command asks a host several times. Waits with less than this between them are one silence.
_IN_A_ROW_S = 1.0

# Threads of the pool do work of many kinds, each in a context of its own.
_speaks_here = contextvars.ContextVar("speaks_here", default=False)
# How long this work has waited for answers without a word, and when it last did.
_silence = contextvars.ContextVar("silence", default=(0.0, float("-inf")))
_printers: list[Callable[[str], object]] = []


def speak_by(printer: Callable[[str], object]) -> None:
    """Set what prints the sentences."""
    _printers[:] = [printer]


def speak_here() -> None:
    """Let the waits of this work speak, too: the main thread has nothing to do but wait for it."""
    _speaks_here.set(True)


def may_speak() -> bool:
    """Whether the waits of this thread speak."""
    return threading.current_thread() is threading.main_thread() or _speaks_here.get()


class Speaker:
    """Says what is waited for when the words change, and again after a while."""

    def __init__(self) -> None:
        self._last, self._at = "", float("-inf")

    def say(self, sentence: str) -> None:
        words = "".join(sign for sign in sentence if not sign.isdigit())
        now = time.monotonic()
        if words != self._last or now >= self._at + AGAIN_S:
            self._last, self._at = words, now
            for printer in _printers:
                printer(sentence)


@contextlib.contextmanager
def silence() -> Iterator[float]:
    """Yield after how many seconds a wait for an answer speaks, since waits in a row are one silence."""
    began = time.monotonic()
    silent_s, ended = _silence.get()
    if began > ended + _IN_A_ROW_S:
        silent_s = 0.0
    try:
        yield max(SPEAK_AFTER_S / 5, SPEAK_AFTER_S - silent_s)
    finally:
        now = time.monotonic()
        # A longer one was broken by a word.
        _silence.set(((silent_s + now - began) % SPEAK_AFTER_S, now))


def wait(
    await_for: Callable[[float | None], bool],
    describe: Callable[[], str],
    timeout_s: float | None = None,
    speak_after_s: float | None = None,
) -> bool:
    """Wait until `await_for`, called with seconds, returns true; return false after `timeout_s`.

    Args:
        await_for: Waits for so long, or without a limit, and returns whether it is over.
        describe: Says what is waited for, and why that takes long.
        timeout_s: None for as long as it takes.
        speak_after_s: When the first word is due; SPEAK_AFTER_S by default.
    """
    if not may_speak():
        return await_for(timeout_s)
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    speaker, next_s = Speaker(), speak_after_s or SPEAK_AFTER_S
    while True:
        left_s = until - time.monotonic()
        if left_s <= next_s:
            return await_for(max(0.0, left_s))
        if await_for(next_s):
            return True
        speaker.say(describe())
        next_s = SPEAK_AFTER_S


def wait_for(
    futures: Iterable[concurrent.futures.Future[Any]], describe: Callable[[], str], timeout_s: float | None = None
) -> bool:
    """Wait until all of these have ended; return false after `timeout_s`."""
    some = list(futures)
    return wait(lambda seconds: not concurrent.futures.wait(some, seconds).not_done, describe, timeout_s)


def wait_for_answer(
    answer: concurrent.futures.Future[Any], describe: Callable[[], str], timeout_s: float | None = None
) -> bool:
    """Wait for a host's answer, which may be one of several in a row; return false after `timeout_s`."""
    with silence() as after_s:
        return wait(lambda seconds: bool(concurrent.futures.wait([answer], seconds).done), describe, timeout_s, after_s)
