"""Protect the file descriptors of this process, and direct what it prints.

A function may close descriptors in a loop, and programs that it starts would inherit them. A fork prints into pipes of
its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator

# Above what daemons close in a loop, and below most limits of open files.
_HIGH = 900
_BOTH = (1, 2)


def out_of_reach(fd: int) -> int:
    """Move `fd` to a high number, where the limit of open files allows that; programs started by exec do not get it."""
    try:
        copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:
        os.set_inheritable(fd, False)
        return fd
    os.close(fd)
    return copy


def open_files() -> dict[int, str]:
    """Return what this process has open, by descriptor: paths, and names such as "pipe:[7]"."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        # It is the descriptor of the listing itself.
        with contextlib.suppress(OSError):
            found[int(fd)] = os.readlink("/proc/self/fd/%s" % fd)
    return found


def keep_from_programs() -> None:
    """Let programs that the function starts inherit nothing that is open now, such as GPU leases."""
    for name in os.listdir("/dev/fd"):
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)
        except OSError:
            # It is the descriptor of the listing itself.
            continue


def flush_output() -> None:
    """Write what was printed: a fork would print it again, and one that exits at once would lose it."""
    # The function may have put its own in the place of the first two.
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        try:
            getattr(sys, name, None).flush()  # type: ignore[union-attr]
        except BaseException:  # noqa: BLE001, S112 - deleted, closed, full, or the function's own, which raises anything
            continue


def redirect_output(out: int, err: int) -> None:
    """Print into these pipes from now on, which are closed under their own numbers."""
    for target, fd in zip(_BOTH, (out, err)):
        os.dup2(fd, target)
        os.close(fd)


@contextlib.contextmanager
def drop_output() -> Iterator[None]:
    """Drop what is printed meanwhile. The streams stay the same, so what keeps one of them can print later."""
    flush_output()
    kept = [os.dup(fd) for fd in _BOTH]
    nowhere = [os.open(os.devnull, os.O_WRONLY) for _ in _BOTH]
    redirect_output(*nowhere)
    try:
        yield
    finally:
        flush_output()
        redirect_output(*kept)


def output_has_copies() -> bool:
    """Whether more than stdout and stderr lead to their pipes, which in a fork lead to others."""
    files = open_files()
    return any(fd > 2 and name in (files[1], files[2]) for fd, name in files.items())
