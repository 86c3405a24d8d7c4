"""When to look at a file again: when the kernel says so, and by a poll for what the kernel does not hear of."""

import collections
import os
import time

from .files import existing_folder
from .inotify import new_inotify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Set

    from .inotify import Inotify
    from .loop import Agent

POLL_FIRST_S, POLL_LAST_S, POLL_EACH_S = 0.01, 0.25, 0.0005


class Watch:
    """Follows and waits, looked at when the kernel says so, and by a poll that slows down to `POLL_LAST_S`."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.open: "Dict[Any, int]" = {}
        self.folders: "Dict[int, Set[Any]]" = collections.defaultdict(set)
        self.inotify: "Optional[Inotify]" = None
        self.tried = False
        self.pause = POLL_FIRST_S
        self.next = 0.0

    def add(self, request: "Any") -> None:
        if not self.tried:
            self.tried = True
            self.inotify = new_inotify()
            if self.inotify:
                self.agent.readers[self.inotify.fd] = self.on_events
        self.open[request] = -1
        self.arm(request)
        self.hurry()
        request.look(True)

    def arm(self, request: "Any") -> None:
        """Watch the nearest folder that exists, again if a nearer one appeared meanwhile."""
        folder = ""
        while self.inotify and folder != existing_folder(request.path):
            folder = existing_folder(request.path)
            number = self.inotify.add(folder)
            if number != self.open[request]:
                self.disarm(request)
                self.open[request] = number
                self.folders[number].add(request)

    def disarm(self, request: "Any") -> None:
        number = self.open[request]
        self.folders[number].discard(request)
        if not self.folders[number]:
            del self.folders[number]
            if self.inotify and number >= 0:
                self.inotify.remove(number)

    def drop(self, request: "Any") -> None:
        if request in self.open:
            self.disarm(request)
            del self.open[request]

    def hurry(self) -> None:
        self.pause = POLL_FIRST_S
        self.next = time.monotonic() + self.pause

    def on_events(self, _fd: int) -> None:
        assert self.inotify is not None
        for number in self.inotify.events():
            for request in list(self.folders.get(number, ())):
                self.check(request, False)

    def check(self, request: "Any", ask_server: bool) -> bool:
        if request not in self.open:
            return False
        if not os.path.isdir(os.path.dirname(request.path)) or self.open[request] < 0 or ask_server:
            self.arm(request)
        return bool(request.safely(lambda: request.look(ask_server)))

    def poll(self, now: float) -> None:
        if not self.open or now < self.next:
            return
        news = [self.check(request, True) for request in list(self.open)]
        slower = min(self.pause * 1.5, POLL_LAST_S)
        self.pause = max(POLL_FIRST_S if any(news) else slower, POLL_EACH_S * len(self.open))
        self.next = time.monotonic() + self.pause
