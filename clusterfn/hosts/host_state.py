"""What this process knows of one host: its environments, what jobs may get, its queue, and which jobs are followed."""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from clusterfn.bridge import layout
from clusterfn.environment import existing
from clusterfn.errors import HostError
from clusterfn.hosts import loop
from clusterfn.hosts.connected_host import ConnectedHost
from clusterfn.hosts.connection import HostConnection, Reply
from clusterfn.hosts.environment_choice import EnvironmentRequest, EnvironmentResolver
from clusterfn.hosts.host_capacity import HostCapacity
from clusterfn.hosts.scheduler_watch import SchedulerWatch

if TYPE_CHECKING:
    from clusterfn.config.spec import Host

CALLER = existing.CALLER
_PROBE_TIMEOUT_S = 60.0
HELD_S = 5.0
# Each job that is followed takes some hundred objects here, which Python's garbage collector walks through, and watches
# of folders on the host. With twenty thousand jobs, one walk takes seconds, and no end is reported meanwhile.
MOST_FOLLOWED = 4000
T = TypeVar("T")


class HostState(ConnectedHost):
    """One host, as this process knows it.

    Attributes:
        limits: What its scheduler said of what it allows; None until it was asked.
        follow_window: Which of this process's jobs there are followed.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.limits: list[str] | None = None
        self.follow_window: FollowWindow[Any] = FollowWindow()
        self._has_hold: bool | None = None
        self._held_looked = float("-inf")
        self._held_look: Reply[list[bool]] | None = None
        # Has one entry, for the present connection: entries of ended connections are removed.
        self._watches: dict[HostConnection, SchedulerWatch] = {}

    def expect(self, request: EnvironmentRequest) -> None:
        """Ask for this environment together with the next connection, if there is none yet.

        Raises:
            ConfigError: No such kind of environment.
        """
        self.probe = self.environments.early_probe(request)

    @property
    def has_held_allocation(self) -> bool:
        """Whether an allocation was held there, as the connection or a look of a few seconds ago has found.

        Waits for nothing: the first call says how it was, and has the host look for the calls after it.
        """
        if not self.scheduler_rules.holds:
            return False
        connection = self.connection
        if self._has_hold is None:
            self._has_hold, self._held_looked = connection.facts.have[1:2] == (True,), time.monotonic()
        elif time.monotonic() - self._held_looked > HELD_S and (self._held_look is None or self._held_look.done()):
            self._held_looked = time.monotonic()
            self._held_look = connection.have([posixpath.join(self.root, layout.HOLD)])
            loop.begin(self._see_held(self._held_look))
        return self._has_hold

    async def _see_held(self, answer: Reply[list[bool]]) -> None:
        with contextlib.suppress(HostError):
            # Keep the old answer if the host cannot be asked now: a later call asks again.
            (self._has_hold,) = await answer

    @property
    def watch(self) -> SchedulerWatch:
        """The looks at the scheduler for all jobs of this process, as long as the connection is the same."""
        connection = self.connection
        watch = self._watches.get(connection)
        if watch is None:
            new = SchedulerWatch(connection, self.scheduler, poll_floor_s=self.host.poll_floor_s)
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

    @functools.cached_property
    def environments(self) -> EnvironmentResolver:
        """The environments of calls there."""
        return EnvironmentResolver(self)

    @functools.cached_property
    def capacity(self) -> HostCapacity:
        """What jobs may get there."""
        return HostCapacity(self)


_sessions: dict[str, HostState] = {}


def open_session(host: Host) -> HostState:
    """Return the state of a host: one for each process, and for each host as it is configured."""
    key = repr(host)
    return _sessions.get(key) or _sessions.setdefault(key, HostState(host))


def _follow_none() -> None:
    for session in _sessions.values():
        session.follow_window = FollowWindow()


if hasattr(os, "register_at_fork"):
    # The parent follows its own jobs, so a forked child must not count them in its window.
    os.register_at_fork(after_in_child=_follow_none)


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
