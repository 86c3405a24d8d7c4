"""The connection of a proxy to the holder of its kernel, through the agent: opened again whenever it is lost.

On the machine of the agent it is a unix socket. Inside a scheduler's job it is a program that the scheduler starts on
the job's node: no port listens on a network. What it brings reaches the proxy's own loop as events.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.kernel.carried import READ, SocketWatcher
from clusterfn.errors import AuthenticationError, ClusterfnError, HostError
from clusterfn.hosts import loop

if TYPE_CHECKING:
    from clusterfn.hosts.connection import HostConnection, Reply

# Seconds until the next try: usually, of a scheduler's command, and where the user must log in first.
AGAIN_S, SCHEDULER_S, LOGIN_S = 0.3, 2.0, 5.0
# The kinds of an agent's answer that mean that the holder does not listen.
_GONE = ("missing", "io", "denied", "refused", "unavailable")
# The scheduler's command is tried so often as long as the holder has never answered through it.
_TRIES = 5
# While the client has not taken this much of the kernel's data, no more is accepted from the host.
UNDELIVERED_BYTES = 32 * 2**20
Post = Callable[[str, Any], None]


class HolderLink:
    """A stream of bytes to the holder.

    Args:
        connect: Returns the connection to the host; opens one if necessary.
        address: The holder's socket, on the machine of its job.
        join: The command that carries stdin and stdout to that socket; () where the agent reaches it itself.
        unset: Prefixes of variables that this command must not inherit.
        post: Called from other threads, with "data" and bytes; "lost" and why; "gone" and why: no holder, or no usable
            host.
    """

    def __init__(
        self,
        connect: Callable[[], HostConnection],
        address: str,
        post: Post,
        join: Sequence[str] = (),
        unset: Sequence[str] = (),
    ) -> None:
        self._connect = connect
        self._address = address
        self._join, self._unset = join, unset
        self._post = post
        self._connection: HostConnection | None = None
        self._reply: Reply[None] | None = None
        self._pause_s = 0.0
        self._has_answered = self._is_closed = False
        self._failures = 0

    def open(self, hello: bytes) -> None:
        """Connect and send the hello, the first time at once, later after a pause. Does not wait."""
        loop.begin(self._carry(hello, self._pause_s))
        self._pause_s = SCHEDULER_S if self._join else AGAIN_S

    def write(self, data: bytes) -> None:
        """Send bytes, once the holder has answered the hello; they are lost if the connection is."""
        if self._connection is not None and self._reply is not None:
            self._connection.write(self._reply, data)

    def close(self) -> None:
        """End the connection, and open no other."""
        self._is_closed = True
        if self._reply is not None:
            self._reply.cancel()

    async def _carry(self, hello: bytes, pause_s: float) -> None:
        """Connect after the pause, and say how the connection has ended."""
        await asyncio.sleep(pause_s)
        if self._is_closed:
            return
        try:
            reply = await loop.in_thread(lambda: self._start(hello), "clusterfn-kernel-link")
        except AuthenticationError as error:
            self._pause_s = LOGIN_S
            self._post("lost", error.message)
        except ClusterfnError as error:
            self._post("gone", error.message)
        else:
            self._tell_end(await reply.error())

    def _start(self, hello: bytes) -> Reply[None]:
        """Connect to the host, which may ask for a password, and there to the holder."""

        def receive(data: bytes) -> None:
            self._has_answered = True
            self._post("data", data)

        self._connection = connection = self._connect()
        if self._join:
            self._reply = connection.converse(self._join, hello, receive, self._unset)
        else:
            self._reply = connection.connect_socket(self._address, hello, receive)
        return self._reply

    def _tell_end(self, error: BaseException | None) -> None:
        if self._is_closed:
            return
        self._failures += isinstance(error, HostError) and error.kind == "program"
        # A command that has never succeeded will not do so later. An srun that does not know --overlap is an example.
        is_useless = self._failures >= _TRIES and not self._has_answered
        if isinstance(error, HostError) and (error.kind in _GONE or is_useless):
            self._post("gone", error.message)
        elif error is not None:
            self._post("lost", getattr(error, "message", repr(error)))
        else:
            self._post("lost", "the holder of the kernel closed the connection")


class LoopEvents:
    """What other threads, and signal handlers, which may take no lock, send to the proxy's loop."""

    def __init__(self, watcher: SocketWatcher) -> None:
        self._events: collections.deque[tuple[str, Any]] = collections.deque()
        self._waking, self._woken = socket.socketpair()
        for end in (self._waking, self._woken):
            end.setblocking(False)
        watcher.watch(self._woken, READ, lambda _: self._swallow())

    def post(self, kind: str, data: Any = None) -> None:
        """Send to the loop. The host sends no more than the holder's limit before the loop has acknowledged it."""
        self._events.append((kind, data))
        with contextlib.suppress(OSError):
            # A full socket also wakes the loop, and a closed one means that the loop has ended.
            self._waking.send(b"\0")

    def close(self) -> None:
        """End: the loop has ended."""
        self._waking.close()
        self._woken.close()

    def next_event(self) -> tuple[str, Any] | None:
        """Return the next event; None where there is none."""
        return self._events.popleft() if self._events else None

    def _swallow(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
