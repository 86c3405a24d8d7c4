"""The state that the threads of one link share: its present stream, and who listens for changes."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from clusterfn.errors import ClusterfnError
from clusterfn.hosts.rpc.frames import AgentStream
from clusterfn.hosts.rpc.keepalive import Keepalive

_log = logging.getLogger("clusterfn")


class LinkStream:
    """The present stream of a link. The condition `changed` guards it, and wakes those that wait for a change.

    Attributes:
        opened: The stream; the last one while there is none.
        connected: Whether there is one.
        over: Why the link is closed for good; None while it may still connect.
        pulse: Whether the other end is alive.
    """

    def __init__(self, host: str, opened: AgentStream) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.opened = opened
        self.connected = True
        self.over: ClusterfnError | None = None
        self.pulse = Keepalive(time.monotonic())
        self._host = host

    def renew(self, opened: AgentStream) -> bool:
        """Replace the lost stream by this one; False if the link was closed meanwhile."""
        self.opened = opened
        self.connected = self.over is None
        self.pulse.hear(time.monotonic())
        self.changed.notify_all()
        return self.connected

    def lose(self, opened: AgentStream) -> None:
        """Mark this stream as lost, and close it."""
        with self.changed:
            if opened is self.opened:
                self.connected = False
        self.hang_up(opened)

    def hang_up(self, opened: AgentStream) -> None:
        """Close a stream; this may block for as long as closing takes."""
        try:
            opened.stream.close()
        except Exception:  # noqa: BLE001 - whatever a useless stream says, callers still wait for answers
            _log.debug("the stream to %s could not be closed", self._host, exc_info=True)


@dataclass(frozen=True)
class ConnectionState:
    """The state of a connection, since when (time.time()), and why.

    "connected", "reconnecting", "waiting" (for a person, who has to log in again) or "closed".
    """

    name: str
    since: float
    cause: str = ""


class StateListeners:
    """The present state of the link to one host, and the functions that are called when it changes."""

    def __init__(self, host: str) -> None:
        self.state = ConnectionState("connected", time.time())
        self._host = host
        self._listeners: list[Callable[[ConnectionState], None]] = []

    def listen(self, listener: Callable[[ConnectionState], None]) -> Callable[[], None]:
        """Call `listener` at each change, until the returned function is called."""
        self._listeners.append(listener)

        def end() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return end

    def now(self, name: str, cause: str = "", since: float | None = None) -> None:
        """Set the state, as of now or of `since`, and call each listener on this thread."""
        self.state = ConnectionState(name, time.time() if since is None else since, cause)
        for listener in list(self._listeners):
            try:
                listener(self.state)
            except BaseException:  # noqa: BLE001 - the caller's own function: the others and the reader continue
                _log.exception("a listener failed when it was told that the connection to %s is %s", self._host, name)
