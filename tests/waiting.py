"""How tests wait for what processes do. A limit only ends a test that fails: a busy machine may be ten times slower."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

WAIT_S = 150.0  # below the limit of a test
B = TypeVar("B", bound="Beside")


class Beside:
    """Does its `work` in a thread beside the block that it is entered for, until `over` is set at its end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._thread = threading.Thread(target=self.work)

    def work(self) -> None:
        raise NotImplementedError

    def __enter__(self: B) -> B:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._thread.join()


def until(look: Callable[[], Any], what: str = "") -> Any:
    """Return what `look` gives as soon as it is true; fail if it is not within `WAIT_S`."""
    began = time.monotonic()
    while True:
        waited_s = time.monotonic() - began
        if found := look():
            return found
        assert waited_s < WAIT_S, f"not within {WAIT_S} s: {what or look}"
        look_s = time.monotonic() - began - waited_s
        time.sleep(max(0.005, min(waited_s / 20, 0.1), 3 * look_s))  # some look at every process


def stays(look: Callable[[], Any], seconds: float, what: str = "") -> None:
    """Let time pass in which nothing may happen, or a state has to last; fail once `look` is false."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        assert look(), f"not for {seconds} s: {what or look}"
        if time.monotonic() >= deadline:
            return
        time.sleep(max(0.01, 3 * (time.monotonic() - began)))


def replace_here(patch: pytest.MonkeyPatch, module: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a function for the calling thread alone: threads that other tests left pause and read clocks, too."""
    real, here = getattr(module, name), threading.get_ident()

    def either(*args: Any) -> Any:
        return (replacement if threading.get_ident() == here else real)(*args)

    patch.setattr(module, name, either)
