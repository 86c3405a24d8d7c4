"""The stdout and stderr of this process: what a fork takes over of them, and what else leads there."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from .descriptors import open_files

_BOTH = (1, 2)


def flush() -> None:
    """Write what was printed: a fork would print it again, and one that exits at once would lose it."""
    # The function may have put its own in the place of the first two.
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        try:
            getattr(sys, name, None).flush()  # type: ignore[union-attr]
        except BaseException:  # noqa: BLE001, S112 - deleted, closed, full, or the function's own, which raises anything
            continue


def take(out: int, err: int) -> None:
    """Print into these pipes from now on, which are closed under their own numbers."""
    for target, fd in zip(_BOTH, (out, err)):
        os.dup2(fd, target)
        os.close(fd)


@contextlib.contextmanager
def to_nowhere() -> Iterator[None]:
    """Drop what is printed meanwhile. The streams stay the same, so what keeps one of them can print later."""
    flush()
    kept = [os.dup(fd) for fd in _BOTH]
    nowhere = [os.open(os.devnull, os.O_WRONLY) for _ in _BOTH]
    take(*nowhere)
    try:
        yield
    finally:
        flush()
        take(*kept)


def have_copies() -> bool:
    """Whether more than stdout and stderr lead to their pipes, which in a fork lead to others."""
    files = open_files()
    return any(fd > 2 and name in (files[1], files[2]) for fd, name in files.items())
