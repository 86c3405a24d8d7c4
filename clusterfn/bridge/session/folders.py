"""The folders of a session's calls: one is laid out as a whole, new ones are noticed, ended ones come to the disk.

No call waits for the disk, because a process of its own brings them there. What a process has written survives the
death of every process; only the machine's own death loses it before it is on the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from ..agent.libc import new_inotify
from ..kernel.carried import READ
from ..layout import CALL, OUTCOME, PAYLOAD, VALUE
from ..supervisor.limits import clock
from ..supervisor.publish import sync_folder
from ..supervisor.worker_process import die_with_parent

if TYPE_CHECKING:
    from ..kernel.carried import SocketWatcher

# These are the fields of call.json. All but the first are of calls of actors.
CALL_FACTS = ("sys_path", "actor", "name", "closes")


class CallFolders:
    """Lays out calls."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        # It holds the content of the last call.json and its path.
        self._last = (b"", "")

    def lay_out(self, number: int, payload: bytes, facts: dict[str, Any]) -> None:
        """Make the folder of a call, as a whole, unless it is there.

        Raises:
            OSError: It could not be made, and nothing of it is left.
        """
        place = os.path.join(self._folder, str(number))
        aside = os.path.join(self._folder, ".%d-%s" % (number, os.urandom(4).hex()))
        said = json.dumps(facts).encode()
        try:
            os.mkdir(aside, 0o700)
            _write(os.path.join(aside, PAYLOAD), payload)
            self._write_facts(os.path.join(aside, CALL), said)
            os.rename(aside, place)
            self._last = said, os.path.join(place, CALL)
        except OSError:
            _remove(aside)
            if not os.path.isdir(place):
                raise

    def _write_facts(self, path: str, said: bytes) -> None:
        """Link it to the one before if that says the same, as most do: a new file would take ten times as long."""
        if said == self._last[0]:
            # The file system has no links, this file has too many, or it was removed.
            with contextlib.suppress(OSError):
                os.link(self._last[1], path)
                return
        _write(path, said)


def _write(path: str, data: bytes) -> None:
    with open(path, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(data)


def _remove(folder: str) -> None:
    for name in (PAYLOAD, CALL):
        # It was not made.
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):  # as above
        os.rmdir(folder)


_FIRST_S, _LAST_S, _LONGEST_S = 0.02, 1.0, 10.0
# After a minute without a call there is one look a second.
_SLOWING = 60.0
# Looks take at most 2 % of the time.
_COST = 50.0


class FolderWatch:
    """Signs of life in a folder, which over a network file system the kernel does not give.

    Args:
        folder: It must exist.

    Attributes:
        has_changed: Whether the kernel has said so.
    """

    def __init__(self, folder: str, watcher: SocketWatcher) -> None:
        self.has_changed = True
        self._cost_s = 0.0
        self._inotify = new_inotify()
        if self._inotify is not None:
            self._inotify.add(folder)
            watcher.watch(self._inotify.fd, READ, lambda _: self._on_change())
        self._since = self._looked = clock.now()

    def _on_change(self) -> None:
        assert self._inotify is not None
        self._inotify.events()
        self.has_changed = True

    def busy(self) -> None:
        """Look often again, as something came."""
        self._since = clock.now()

    @property
    def silent_s(self) -> float:
        return clock.now() - self._since

    def pause_s(self) -> float:
        return max(min(_LAST_S, max(_FIRST_S, self.silent_s / _SLOWING)), min(_LONGEST_S, _COST * self._cost_s))

    def is_due(self) -> bool:
        return clock.now() >= self._looked + self.pause_s()

    def looked(self, cost_s: float) -> None:
        """Take note of a look, which took so long: with many calls the next comes later."""
        self._looked, self._cost_s = clock.now(), cost_s


# Each commit to the disk delays the calls that make files meanwhile.
_GATHER_MS = 100
_PIECE = 64 << 10  # bytes of names
# Calls that still run come first, so that a thousand at once take less time.
_NICENESS = 5
# Bytes of names, of about a hundred thousand calls. Beyond it, calls end faster than the disk takes them: the kernel
# writes what is not named here by itself, within half a minute by default.
_MOST_WAITING = 16 << 20


class Flusher:
    """The process that brings the files of ended calls to the disk.

    Attributes:
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
