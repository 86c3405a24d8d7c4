"""Notice that files were created or have grown: by inotify, and by polling for what the kernel does not see."""

import collections
import os
import time

from .files import existing_folder
from .inotify import new_inotify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Protocol, Set

    from .inotify import Inotify

    class Watching(Protocol):
        """A handler that looks at a file when it may have changed."""

        path: str

        def look(self, ask_server: bool) -> bool: ...
        def safely(self, action: Callable[[], Any]) -> Any: ...


POLL_FIRST_S, POLL_LAST_S, POLL_EACH_S = 0.01, 0.25, 0.0005


class FileWatcher:
    """Calls `look` of handlers when inotify reports a change, and by a poll that slows down to `POLL_LAST_S`.

    Args:
        readers: The loop's callbacks by file descriptor; inotify's is added.
    """

    def __init__(self, readers: "Dict[int, Callable[[int], None]]") -> None:
        self.readers = readers
        self.open: "Dict[Watching, int]" = {}
        self.folders: "Dict[int, Set[Watching]]" = collections.defaultdict(set)
        self.inotify: "Optional[Inotify]" = None
        self.tried = False
        self.pause = POLL_FIRST_S
        self.next_poll = 0.0

    def add(self, request: "Watching") -> None:
        if not self.tried:
            self.tried = True
            self.inotify = new_inotify()
            if self.inotify:
                self.readers[self.inotify.fd] = self.on_events
        self.open[request] = -1
        self.arm(request)
        self.pause = POLL_FIRST_S
        self.next_poll = time.monotonic() + self.pause
        request.look(True)

    def arm(self, request: "Watching") -> None:
        """Watch the nearest folder that exists; repeat if a nearer one appeared meanwhile."""
        folder = ""
        while self.inotify and folder != existing_folder(request.path):
            folder = existing_folder(request.path)
            number = self.inotify.add(folder)
            if number != self.open[request]:
                self.disarm(request)
                self.open[request] = number
                self.folders[number].add(request)

    def disarm(self, request: "Watching") -> None:
        number = self.open[request]
        self.folders[number].discard(request)
        if not self.folders[number]:
            del self.folders[number]
            if self.inotify and number >= 0:
                self.inotify.remove(number)

    def drop(self, request: "Watching") -> None:
        if request in self.open:
            self.disarm(request)
            del self.open[request]

    def on_events(self, _fd: int) -> None:
        assert self.inotify is not None
        for number in self.inotify.events():
            for request in list(self.folders.get(number, ())):
                self.check(request, False)

    def check(self, request: "Watching", ask_server: bool) -> bool:
        if request not in self.open:
            return False
        if not os.path.isdir(os.path.dirname(request.path)) or self.open[request] < 0 or ask_server:
            self.arm(request)
        return bool(request.safely(lambda: request.look(ask_server)))

    def poll(self, now: float) -> None:
        if not self.open or now < self.next_poll:
            return
        changed = [self.check(request, True) for request in list(self.open)]
        slower = min(self.pause * 1.5, POLL_LAST_S)
        self.pause = max(POLL_FIRST_S if any(changed) else slower, POLL_EACH_S * len(self.open))
        self.next_poll = time.monotonic() + self.pause
