"""The folders of a session's calls: one is laid out as a whole, and new ones are noticed.

No call waits for the disk. What a process has written survives the death of every process; only the machine's own death
loses it before the kernel has brought it to the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from ..agent.libc import new_inotify
from ..kernel.carried import READ
from ..layout import CALL, PAYLOAD
from ..supervisor.limits import clock

if TYPE_CHECKING:
    from ..kernel.carried import SocketWatcher

# These are the fields of call.json. All but the first are of calls of actors.
CALL_FACTS = ("sys_path", "actor", "name", "closes")


def lay_out(calls: str, number: int, payload: bytes, facts: dict[str, Any]) -> None:
    """Make the folder of a call, as a whole, unless it is there.

    Args:
        calls: The folder of all calls.
        facts: What goes into its call.json.

    Raises:
        OSError: It could not be made, and nothing of it is left.
    """
    place = os.path.join(calls, str(number))
    aside = os.path.join(calls, ".%d-%s" % (number, os.urandom(4).hex()))
    try:
        os.mkdir(aside, 0o700)
        _write(os.path.join(aside, PAYLOAD), payload)
        _write(os.path.join(aside, CALL), json.dumps(facts).encode())
        os.rename(aside, place)
    except OSError:
        _remove(aside)
        if not os.path.isdir(place):
            raise


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


_FIRST_S = 0.02
_LAST_S = 1.0
# After a minute without a call there is one look a second.
_SLOWING = 60.0


class FolderWatch:
    """Signs of life in a folder, which over a network file system the kernel does not give.

    Args:
        folder: It must exist.

    Attributes:
        has_changed: Whether the kernel has said so.
    """

    def __init__(self, folder: str, watcher: SocketWatcher) -> None:
        self.has_changed = True
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
        return min(_LAST_S, max(_FIRST_S, self.silent_s / _SLOWING))

    def is_due(self) -> bool:
        return clock.now() >= self._looked + self.pause_s()

    def looked(self) -> None:
        """Take note of a look."""
        self._looked = clock.now()
