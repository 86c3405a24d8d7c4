"""Notice that files were created or have grown, by inotify and by polling; look at those that should change."""

import collections
import os
import time

from .files import existing_folder
from .frames import TURN_S
from .libc import new_inotify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, Optional, Protocol, Set, Tuple

    from .libc import Inotify

    class Watching(Protocol):
        """A handler that looks at a file when it may have changed."""

        path: str

        def look(self, ask_server: bool) -> bool: ...
        def safely(self, action: Callable[[], Any]) -> Any: ...


POLL_FIRST_S = 0.01
POLL_LAST_S = 0.25
# While nothing changes, the pause is a hundredth of the idle time, up to this limit.
POLL_IDLE_S = 2.0
IDLE_SHARE = 0.01
_UNWATCHED = (-1, "")
# A poll of many files stops after this time, so that other requests have their turn.
SLICE_S = 0.02
# So many looks at events within this time are a flood: as for a map of short items. The next look waits for several.
FLOOD = 32
FLOOD_S = 0.032
GATHER_S = 0.001
# The shares of a core that polling may take, at rest and while files are added or change; and that of this process's
# time, which a slow file server takes.
CPU_SHARE = 0.01
BUSY_CPU_SHARE = 0.05
TIME_SHARE = 0.2


class FileWatcher:
    """Calls `look` of handlers when inotify reports a change, and by a poll.

    The poll slows down to `POLL_LAST_S`, to `POLL_IDLE_S` where nothing changes for minutes, and further where so much
    is followed that it would take more than its share of the machine.

    Args:
        readers: The loop's callbacks by file descriptor; inotify's is added.
        at: As `Agent.at`.
    """

    # Whether the current poll has noticed a change.
    has_news = False

    def __init__(
        self, readers: "Dict[int, Callable[[int], None]]", at: "Callable[[float, Callable[[], None]], object]"
    ) -> None:
        self.readers = readers
        self.at = at
        self.event_times: "Deque[float]" = collections.deque(maxlen=FLOOD)
        # The number of the watched folder, and the name in it that the request waits for.
        self.open: "Dict[Watching, Tuple[int, str]]" = {}
        self.armed: "Dict[Watching, str]" = {}
        # By the folder's number: those that wait for this name in it.
        self.folders: "Dict[int, Dict[str, Dict[Watching, None]]]" = {}
        self.inotify: "Optional[Inotify]" = None
        self.tried = False
        self.pause = POLL_FIRST_S
        self.next_poll = self.changed = float("-inf")
        # The requests that the current poll has not looked at yet.
        self.round: "Deque[Watching]" = collections.deque()
        self.listed: "Dict[str, Optional[Set[str]]]" = {}
        # The CPU time and the elapsed time of the current poll, from which the next pause follows.
        self.used_s = self.taken_s = 0.0
        # New files are looked at once, and make polls more frequent. A poll of thousands does not begin before this.
        self.not_before = 0.0

    def add(self, request: "Watching") -> None:
        if not self.tried:
            self.tried = True
            self.inotify = new_inotify()
            if self.inotify:
                self.readers[self.inotify.fd] = self.on_events
        self.open[request] = _UNWATCHED
        self.arm(request)
        self.pause = POLL_FIRST_S
        self.changed = time.monotonic()
        self.next_poll = max(self.changed + self.pause, self.not_before)
        request.look(True)

    def arm(self, request: "Watching") -> None:
        """Watch the nearest folder that exists; repeat if a nearer one appeared meanwhile."""
        folder = ""
        while self.inotify and folder != existing_folder(request.path):
            folder = existing_folder(request.path)
            name = request.path[len(folder) :].strip("/").partition("/")[0]
            watched = self.inotify.add(folder), name
            if watched != self.open[request]:
                self.disarm(request)
                self.open[request] = watched
                self.folders.setdefault(watched[0], {}).setdefault(watched[1], {})[request] = None
        self.armed[request] = folder or existing_folder(request.path)

    def disarm(self, request: "Watching") -> None:
        number, name = self.open[request]
        names = self.folders.get(number, {})
        names.get(name, {}).pop(request, None)
        if not names.get(name):
            names.pop(name, None)
        if not names and self.folders.pop(number, None) is not None and self.inotify and number >= 0:
            self.inotify.remove(number)

    def drop(self, request: "Watching") -> None:
        if request in self.open:
            self.disarm(request)
            del self.open[request]
            self.armed.pop(request, None)

    def on_events(self, fd: int) -> None:
        assert self.inotify is not None
        now = time.monotonic()
        self.event_times.append(now)
        if len(self.event_times) == FLOOD and now - self.event_times[0] < FLOOD_S:
            self.readers.pop(fd, None)
            self.at(GATHER_S, lambda: self.readers.update({fd: self.on_events}))
        # Much that changes in the folder of a job is not followed; what is followed may change several times at once.
        concerned: "Dict[Watching, None]" = {}
        for number, name in self.inotify.changes():
            names = self.folders.get(number, {})
            # A thousand jobs wait for a folder in the same one, and each for another name.
            concerned.update(names.get(name, {}))
            # The event that the folder itself is gone has no name.
            for requests in () if name else list(names.values()):
                concerned.update(requests)
        for request in concerned:
            self.check(request, False)

    def check(self, request: "Watching", ask_server: bool) -> bool:
        if request not in self.open:
            return False
        own = os.path.dirname(request.path)
        # A folder may be whole by the time that its event is read: what comes in it would be left to the poll.
        if self.armed[request] != own or not os.path.isdir(own) or self.open[request][0] < 0 or ask_server:
            self.arm(request)
        return bool(request.safely(lambda: request.look(ask_server)))

    def poll(self, now: float) -> None:
        """Look at all that is followed; if that takes long, at some now, and at the others when called again."""
        if not self.open or now < self.next_poll:
            return
        if not self.round:
            self.round.extend(self.open)
            self.listed = {}
            self.used_s = self.taken_s = 0.0
            self.has_news = False
        if self.inotify:
            # What the kernel notices does not make polls more frequent.
            self.on_events(self.inotify.fd)
        began, used = time.monotonic(), time.process_time()
        while self.round and time.monotonic() - began < SLICE_S:
            request = self.round.popleft()
            if request in self.open and self.may_have_changed(request, self.listed) and self.check(request, True):
                self.has_news = True
        ended = time.monotonic()
        self.used_s += time.process_time() - used
        self.taken_s += ended - began
        if self.round:
            self.next_poll = ended
            return
        if self.has_news:
            self.changed = ended
        idle_s = min((ended - self.changed) * IDLE_SHARE, POLL_IDLE_S)
        slower = max(min(self.pause * 1.5, POLL_LAST_S), idle_s)
        shortest_s = max(self.used_s / BUSY_CPU_SHARE, self.taken_s / TIME_SHARE)
        rest_s = POLL_FIRST_S if self.has_news else max(slower, self.used_s / CPU_SHARE)
        self.pause = max(rest_s, shortest_s)
        self.not_before = ended + shortest_s
        self.next_poll = ended + self.pause

    def may_have_changed(self, request: "Watching", listed: "Dict[str, Optional[Set[str]]]") -> bool:
        """Whether the file is there, or a folder nearer to it than the one that is watched.

        Args:
            listed: The names in each folder that this poll has listed: many requests share one.
        """
        path = request.path
        while path != "/":
            folder, name = os.path.split(path)
            names = names_in(folder, listed)
            if names is not None:
                return name in names or folder != self.armed.get(request, folder)
            path = folder
        return False


def names_in(folder: str, listed: "Dict[str, Optional[Set[str]]]") -> "Optional[Set[str]]":
    """Return the names in a folder, as its server has them now; None if there is no such folder."""
    if folder not in listed:
        try:
            listed[folder] = set(os.listdir(folder))
        except OSError:
            listed[folder] = None
    return listed[folder]


class StillWatcher:
    """Looks again and again at files that should change, such as heartbeats: at all of one interval in one round.

    A round leaves most of the time to other requests. On a slow file server it takes longer than the interval; the next
    one begins later then.

    Args:
        at: As `Agent.at`.
    """

    def __init__(self, at: "Callable[[float, Callable[[], None]], object]") -> None:
        self.at = at
        self.open: "Dict[float, Dict[Callable[[], None], None]]" = {}

    def add(self, look_once: "Callable[[], None]", every_s: float) -> None:
        """Call this at intervals of so many seconds, until it is dropped."""
        new = every_s not in self.open
        self.open.setdefault(every_s, {})[look_once] = None
        if new:
            self.look(every_s, collections.deque(), 0.0)

    def drop(self, look_once: "Callable[[], None]") -> None:
        for looks in self.open.values():
            looks.pop(look_once, None)

    def look(self, every_s: float, remaining: "Deque[Callable[[], None]]", used_s: float) -> None:
        """Look for a turn at those of this round that are left, then again."""
        if not remaining:
            remaining.extend(self.open[every_s])
        if not remaining:
            del self.open[every_s]
            return
        began = now = time.monotonic()
        while remaining and now - began < TURN_S:
            remaining.popleft()()
            now = time.monotonic()
        used_s += now - began
        if remaining:
            self.at(0.0, lambda: self.look(every_s, remaining, used_s))
        else:
            # All look at the same moment: a thousand jobs wake this process no more often than one.
            pause_s = max(every_s - now % every_s if every_s else 0.0, used_s / TIME_SHARE)
            self.at(pause_s, lambda: self.look(every_s, remaining, 0.0))
