"""Asking a busy sshd again: it drops some of many new connections (MaxStartups)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from clusterfn.errors import Unreachable

T = TypeVar("T")
PAUSES_S = (0.3, 1.0, 2.0)


def patiently(open_once: Callable[[], T], was_dropped: Callable[[Unreachable], bool], pauses_s: Sequence[float]) -> T:
    """What `open_once` opens; it is called again after each pause while the host hangs up at once."""
    for pause in pauses_s:
        began = time.monotonic()
        try:
            return open_once()
        except Unreachable as error:
            if not was_dropped(error) or time.monotonic() - began > pauses_s[-1]:
                raise
            threading.Event().wait(pause * random.uniform(0.5, 1.5))
    return open_once()
