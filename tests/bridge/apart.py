"""A network namespace of a test's own: abstract sockets in it are as on another machine. No test in here."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_NEW_NET, _NEW_UTS = 0x40000000, 0x04000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def rename(hostname: str) -> None:
    """Give the calling process a hostname of its own."""
    if _LIBC.unshare(_NEW_UTS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(hostname)


class Apart:
    """One of them; `pid` is that of a process in it."""

    def __init__(self, pid: int) -> None:
        self._fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        self._table = Path(f"/proc/{pid}/net/unix")
        # Its threads stay: a supervisor gets a signal when the thread that has started it ends.
        self._there = concurrent.futures.ThreadPoolExecutor(8, initializer=self.enter)

    def enter(self) -> None:
        """Take the calling thread there."""
        if _LIBC.setns(self._fd, _NEW_NET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def inside(self, work: Callable[[], T]) -> T:
        """What `work` gives there. A `preexec_fn` takes 20 times as long: it forks what thousands of tests fill."""
        return self._there.submit(work).result()

    def names(self) -> set[str]:
        """The names that are held there."""
        words = (line.split() for line in self._table.read_text().splitlines())
        return {line[7].partition("/")[2] for line in words if len(line) > 7 and line[7].startswith("@clusterfn/")}

    def close(self) -> None:
        """The test is over."""
        self._there.shutdown()
        os.close(self._fd)


@contextlib.contextmanager
def apart() -> Iterator[Apart]:
    """One for the length of a with block; needs root."""
    argv = ["unshare", "--net", "sh", "-c", "ip link set lo up; echo there; exec sleep 600"]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder:
        holder.stdout.readline()
        made = Apart(holder.pid)
        try:
            yield made
        finally:
            made.close()
            holder.kill()
