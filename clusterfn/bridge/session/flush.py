"""Brings the files of ended calls to the disk, in a process of its own: no call waits for that.

What a process has written survives the death of every process; only the machine's own death loses it before it is on
the disk.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable
from typing import NoReturn

from ..layout import OUTCOME, VALUE
from ..supervisor.publish import sync_folder
from ..supervisor.worker_process import die_with_parent

# Each commit to the disk delays the calls that make files meanwhile.
_GATHER_MS = 100
_PIECE = 64 << 10  # bytes of names
# Calls that still run come first, so that a thousand at once take less time.
_NICENESS = 5
# Bytes of names, of about a hundred thousand calls. Beyond it, calls end faster than the disk takes them: the kernel
# writes what is not named here by itself, within half a minute by default.
_MOST_WAITING = 16 << 20


class Flusher:
    """The process.

    Attributes:
        pid: Its pid.
        fd: The descriptor that other processes must not keep open.
    """

    def __init__(self) -> None:
        reading, self.fd = os.pipe()
        self._waiting = bytearray()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.fd)
            _live(reading, parent)
        os.close(reading)
        os.set_blocking(self.fd, False)

    def add(self, attempt: str) -> None:
        """Have the outcome and the value in this folder brought to the disk."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting += os.fsencode(attempt) + b"\0"
        self._write()

    def _write(self) -> None:
        # The rest goes with the next names, or the process was killed.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._waiting:
                del self._waiting[: os.write(self.fd, self._waiting)]

    def close(self) -> None:
        """Wait until all that was added is on the disk."""
        os.set_blocking(self.fd, True)
        self._write()
        os.close(self.fd)
        # It was killed, and has been collected.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _live(reading: int, parent: int) -> NoReturn:
    try:
        die_with_parent(9, parent)
        # A container may forbid it.
        with contextlib.suppress(OSError):
            os.nice(_NICENESS)
        rest = b""
        pause = select.poll()
        # No mask keeps out the event that the pipe is closed.
        pause.register(reading, 0)
        while True:
            data = os.read(reading, _PIECE)
            if not data:
                break
            *names, rest = (rest + data).split(b"\0")
            sync(map(os.fsdecode, names))
            # After a full piece, more waits already.
            if len(data) < _PIECE:
                pause.poll(_GATHER_MS)
    finally:
        os._exit(0)


def sync(attempts: Iterable[str]) -> None:
    """Bring the outcomes and values in these folders to the disk."""
    for attempt in attempts:
        for name in (VALUE, OUTCOME):
            # The function has removed it, or the disk refuses.
            with contextlib.suppress(OSError):
                fd = os.open(os.path.join(attempt, name), os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        with contextlib.suppress(OSError):  # as above
            sync_folder(attempt)
