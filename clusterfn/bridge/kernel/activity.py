"""Notice how long a kernel has been idle, by a connection of the holder's own to the kernel's iopub channel.

Counted is what a user does: cells, widgets, completion. What clients ask at intervals leaves the kernel idle.
"""

import json
import time

from ..supervisor.limits import clock
from .carried import READ, receive
from .zmtp import GREETING, GREETING_BYTES, MessageReader, subscriber_ready, subscription

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from .carried import SocketWatcher

_TOPIC = b"kernel."
_WELCOME_S = 0.5  # ipykernel before version 7 sends no welcome
_NOT_COUNTED = ("kernel_info_request", "comm_info_request", "usage_request", "debug_request", "shutdown_request", "")


class KernelActivity:
    """The connection, for one kernel.

    Args:
        watcher: The loop of this process.
        sock: Connected to iopub.
    """

    def __init__(self, watcher: "SocketWatcher", sock: "socket.socket") -> None:
        self._watcher = watcher
        self._sock = sock
        self._reader = MessageReader()
        self._busy: "set[str]" = set()  # ids of requests that the kernel works on
        self._idle_since = clock.now()
        self._greeted = 0  # bytes of the kernel's greeting
        self._welcome_until = float("inf")
        sock.setblocking(False)
        sock.sendall(GREETING)
        watcher.watch(sock, READ, lambda _: self._read())

    def idle_s(self) -> float:
        """Return the seconds since the kernel has last done something for a user; 0 while it does."""
        return 0.0 if self._busy else clock.now() - self._idle_since

    def is_subscribed(self) -> bool:
        """Whether the kernel has answered this connection's subscription, or will not.

        It publishes that answer, `iopub_welcome`, to all subscribers: a client that was connected before would take it
        for its own.
        """
        return time.monotonic() >= self._welcome_until

    def close(self) -> None:
        self._watcher.forget(self._sock)
        self._sock.close()

    def _read(self) -> None:
        data = receive(self._sock)
        if data is None:
            return
        if not data:  # the kernel has ended, which its holder sees
            self._watcher.forget(self._sock)
        elif self._greeted < GREETING_BYTES:
            self._greeted += len(data)
            if self._greeted >= GREETING_BYTES:  # libzmq stalls if all comes at once
                self._sock.sendall(subscriber_ready() + subscription(_TOPIC))
                self._welcome_until = time.monotonic() + _WELCOME_S
        for parts in self._reader.feed(data):
            self._note(parts)

    def _note(self, parts: "list[bytes]") -> None:
        """Keep which requests the kernel works on, by the `status` messages that it publishes for each."""
        if parts[0] == _TOPIC:
            self._welcome_until = 0.0
        if len(parts) < 7 or not parts[0].endswith(b".status"):
            return
        parent, content = json.loads(parts[4].decode()), json.loads(parts[6].decode())
        if parent.get("msg_type", "") in _NOT_COUNTED:
            return
        if content.get("execution_state") == "busy":
            self._busy.add(parent["msg_id"])
        else:
            self._busy.discard(parent["msg_id"])
            self._idle_since = clock.now()
