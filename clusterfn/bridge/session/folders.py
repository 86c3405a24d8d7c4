"""The folders of a session's calls: one is laid out as a whole, and new ones are noticed."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from ..agent.inotify import new_inotify
from ..kernel.carried import READ
from ..layout import CALL, PAYLOAD

if TYPE_CHECKING:
    from ..kernel.carried import SocketWatcher

CALL_FACTS = ("sys_path", "actor", "name", "closes")  # what call.json says; all but the first of calls of actors


def lay_out_call(folder: str, number: int, payload: bytes, facts: dict[str, Any]) -> None:
    """Make the folder of a call, as a whole, unless it is there.

    Raises:
        OSError: It could not be made, and nothing of it is left.
    """
    place = os.path.join(folder, str(number))
    aside = os.path.join(folder, ".%d-%s" % (number, os.urandom(4).hex()))
    try:
        os.mkdir(aside, 0o700)
        for name, data in ((PAYLOAD, payload), (CALL, json.dumps(facts).encode())):
            with open(os.path.join(aside, name), "xb", opener=_privately) as file:
                file.write(data)
        os.rename(aside, place)
    except OSError:
        _remove(aside)
        if not os.path.isdir(place):
            raise


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _remove(folder: str) -> None:
    for name in (PAYLOAD, CALL):
        with contextlib.suppress(OSError):  # it was not made
            os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):  # as above
        os.rmdir(folder)


_FIRST_S, _LAST_S, _LONGEST_S = 0.02, 1.0, 10.0
_SLOWING = 60.0  # after a minute without a call: a look a second
_COST = 50.0  # looks take at most 2 % of the time


class FolderWatch:
    """Signs of life in a folder, which over a network file system the kernel does not give.

    Args:
        folder: It must exist.
        watcher: The loop of this process.

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
        self._since = self._looked = time.monotonic()

    def _on_change(self) -> None:
        assert self._inotify is not None
        self._inotify.events()
        self.has_changed = True

    def busy(self) -> None:
        """Look often again, as something came."""
        self._since = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Return the seconds since something came."""
        return time.monotonic() - self._since

    def pause_s(self) -> float:
        """Return how long to wait until the next look."""
        return max(min(_LAST_S, max(_FIRST_S, self.silent_s / _SLOWING)), min(_LONGEST_S, _COST * self._cost_s))

    def is_due(self) -> bool:
        """Whether to look now."""
        return time.monotonic() >= self._looked + self.pause_s()

    def looked(self, cost_s: float) -> None:
        """Take note of a look, which took so long: with many calls the next comes later."""
        self._looked, self._cost_s = time.monotonic(), cost_s
