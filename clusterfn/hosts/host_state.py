"""One host, the connection to it, and what is known of it: files, environments, what jobs may get, its queue."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import posixpath
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from clusterfn.bridge import layout
from clusterfn.environment import existing
from clusterfn.errors import ClusterfnError, HostError
from clusterfn.hosts import loop
from clusterfn.hosts.bridge_bundle import HostBridge, HostContents
from clusterfn.hosts.connection import HostConnection, connection_for
from clusterfn.hosts.environment_choice import EnvironmentResolver
from clusterfn.hosts.host_capacity import HostCapacity
from clusterfn.hosts.scheduler_watch import SchedulerWatch
from clusterfn.scheduler import scheduler_for

if TYPE_CHECKING:
    from clusterfn.config.spec import Host
    from clusterfn.hosts.connection import Reply
    from clusterfn.scheduler.base import Scheduler

CALLER = existing.CALLER
_PROBE_TIMEOUT_S = 60.0
# Each job that is followed takes some hundred objects here, which Python's garbage collector walks through, and watches
# of folders on the host. With twenty thousand jobs, one walk takes seconds, and no end is reported meanwhile.
MOST_FOLLOWED = 4000
T = TypeVar("T")
Sends = Mapping[str, "Callable[[], Reply[bool]]"]
"""By path, what sends it."""


class HostState:
    """One host, which is connected when it is first asked for anything.

    Attributes:
        contents: What is known to be there, or is on its way.
        bridge: The bridge there, and its programs.
        limits: What its scheduler said of what it allows; None until it was asked.
        follow_window: Which of this process's jobs there are followed.
    """

    def __init__(self, host: Host) -> None:
        self.settings = host
        self.contents = HostContents()
        self.bridge = HostBridge(self.connect, self.contents, self.scheduler_rules.unset)
        self._connected: HostConnection | None = None
        self.limits: list[str] | None = None
        self._schedulers: dict[str, Scheduler] = {}  # by the host's boot id
        self.follow_window: FollowWindow[Any] = FollowWindow()
        # Has one entry, for the present connection: entries of ended connections are removed.
        self._watches: dict[HostConnection, SchedulerWatch] = {}

    @property
    def connection(self) -> HostConnection:
        """The one connection to the host; opened again if it was given up."""
        return self.connect()

    @property
    def root(self) -> str:
        """The host's root, absolute."""
        return self.connection.facts.root

    def here(self, when: float) -> float:
        """Return a moment by this machine's clock, given by the host's. Waits for nothing."""
        return when - self._connected.facts.ahead_s if self._connected is not None else when

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection that can be used, or that is being made again."""
        return self._connected is not None and self._connected.link.usable()

    def connect(self) -> HostConnection:
        """Return the connection; open it if it is not open yet."""
        connected = self._connected
        if connected is not None and connected.link.usable():
            # A call gets the connection several times, so the usual case must cost next to nothing.
            return connected
        if loop.is_here():
            # Connecting would block the loop's thread. Whatever runs in the
            # loop belongs to the old connection and ends with it.
            raise HostError(f"The connection to {self.settings.name} was closed", host=self.settings.name)
        have = [posixpath.join(self.settings.root, self.bridge.name)]
        connected = connection_for(self.settings, have=have)
        self.contents.distrust()
        if connected.facts.have[:1] == (True,):
            self.contents.add([posixpath.join(connected.facts.root, self.bridge.name)])
        # Assign last: other threads use this attribute without a lock.
        self._connected = connected
        return connected

    @functools.cached_property
    def scheduler_rules(self) -> Scheduler:
        """The scheduler as far as the configuration alone describes it; needs no connection."""
        return scheduler_for(self.settings)

    @property
    def scheduler(self) -> Scheduler:
        """What builds the host's commands and reads their answers."""
        facts = (self._connected or self.connect()).facts
        if facts.boot_id not in self._schedulers:
            # Where there is no scheduler, this program prints which jobs wait, and ensures that a spooler starts them.
            def queue() -> tuple[str, ...]:
                return tuple(self.bridge.words(layout.SUPERVISE, "queue", self.root))

            known = {"user": facts.user, "boot_id": facts.boot_id, "queue": queue}
            self._schedulers[facts.boot_id] = scheduler_for(self.settings, known)
        return self._schedulers[facts.boot_id]

    @property
    def watch(self) -> SchedulerWatch:
        """The looks at the scheduler for all jobs of this process, as long as the connection is the same."""
        connection = self.connection
        watch = self._watches.get(connection)
        if watch is None:
            new = SchedulerWatch(connection, self.scheduler, poll_floor_s=self.settings.poll_floor_s)
            # Another thread may create a watch at the same time. `setdefault` keeps only one of them.
            watch = self._watches.setdefault(connection, new)
            for other in list(self._watches):
                if other is not connection:
                    self._watches.pop(other, None)
        return watch

    def unwatch(self, job_name: str) -> None:
        """Look at that job no longer. Open no connection."""
        for watch in list(self._watches.values()):
            watch.remove(job_name)

    def missing(self, paths: list[str]) -> set[str]:
        """Return which of these paths, absolute and named by their content, the host lacks, or gets at this moment."""
        unknown = self.contents.unknown(paths)
        answers = self.connection.have(unknown).result(_PROBE_TIMEOUT_S) if unknown else []
        self.contents.add(path for path, exists in zip(unknown, answers) if exists)
        return {path for path in paths if path not in self.contents}

    async def send_again(self, uploads: Sends, paths: list[str]) -> HostError | None:
        """Send what the host has just found missing or damaged; return the error if that failed."""
        self.contents.distrust(paths)
        error: BaseException | None = None
        try:
            sent = await loop.in_thread(
                lambda: [self.contents.send(path, uploads[path]) for path in paths], "clusterfn-send-again"
            )
            errors = [await reply.error() for replies in sent for reply in replies]
            error = next(filter(None, errors), None)
        except (ClusterfnError, OSError, concurrent.futures.CancelledError) as ended:
            # A file on this machine may be gone, too.
            error = ended
        if error is not None and not isinstance(error, HostError):
            error = HostError(f"it was not sent again: {error}", host=self.settings.name)
        return error

    @functools.cached_property
    def environments(self) -> EnvironmentResolver:
        """The environments of calls there."""
        return EnvironmentResolver(self)

    @functools.cached_property
    def capacity(self) -> HostCapacity:
        """What jobs may get there."""
        return HostCapacity(self)


_states: dict[str, HostState] = {}


def open_host(host: Host) -> HostState:
    """Return the state of a host: one for each process, and for each host as it is configured."""
    key = repr(host)
    return _states.get(key) or _states.setdefault(key, HostState(host))


def _forget_all() -> None:
    """Drop the parent's hosts in a forked child, which has no threads that answer for them or release their locks."""
    # Keep a reference to each. If Python collected them, it would report the parent's coroutines as never ended.
    _inherited.extend(_states.values())
    _states.clear()


_inherited: list[HostState] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


class FollowWindow(Generic[T]):
    """The trackers of jobs that are followed in turn, and of those that wait, in their order; for any thread.

    The oldest are followed, and those that begin. Thousands that wait cost next to nothing. Those that begin ahead of
    older ones take no place from these: what a look at the queue misses may not have begun.
    """

    def __init__(self) -> None:
        self._in_turn: set[T] = set()
        self._waiting: OrderedDict[T, None] = OrderedDict()

    def enter(self, tracker: T) -> bool:
        """Return whether the job is followed from now on; else it waits for its turn."""
        if len(self._in_turn) < MOST_FOLLOWED and not self._waiting:
            self._in_turn.add(tracker)
            return True
        self._waiting[tracker] = None
        return False

    def hurry(self, tracker: T) -> bool:
        """Follow a waiting job ahead of older ones. Return False if it was not waiting."""
        with contextlib.suppress(KeyError):
            del self._waiting[tracker]
            return True
        return False

    def leave(self, tracker: T) -> list[T]:
        """Take note that the job has ended; return the jobs whose turn has come."""
        self._in_turn.discard(tracker)
        self._waiting.pop(tracker, None)
        begun: list[T] = []
        with contextlib.suppress(KeyError):
            # `popitem` raises KeyError once no job waits any more.
            while len(self._in_turn) < MOST_FOLLOWED:
                begun.append(self._waiting.popitem(last=False)[0])
                self._in_turn.add(begun[-1])
        return begun
