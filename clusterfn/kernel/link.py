"""The connection of a proxy to the holder of its kernel, through the agent: opened again whenever it is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterfn.errors import AuthenticationError, ClusterfnError, HostError

if TYPE_CHECKING:
    from clusterfn.hosts.connection import HostConnection, Reply

AGAIN_S, LOGIN_S = 0.3, 5.0  # until the next try; until somebody may have logged in
_GONE = ("missing", "io", "denied", "refused")  # kinds of an agent's answer: nothing listens at the socket
Post = Callable[[str, Any], None]


class HolderLink:
    """A stream of bytes to the holder.

    Args:
        connect: Returns the connection to the host; opens one if there is none.
        address: The holder's socket on the host.
        post: Called from other threads, with "data" and bytes; "lost" and why; "gone" and why: the holder no longer
            exists, or the host cannot be used any more.
    """

    def __init__(self, connect: Callable[[], HostConnection], address: str, post: Post) -> None:
        self._connect = connect
        self._address = address
        self._post = post
        self._connection: HostConnection | None = None
        self._reply: Reply[None] | None = None
        self._pause_s = 0.0

    def open(self, hello: bytes) -> None:
        """Connect and send the hello, in another thread; the first time at once, later after a pause."""
        opening = threading.Timer(self._pause_s, self._open, [hello])
        opening.name, opening.daemon = "clusterfn-kernel-link", True
        self._pause_s = AGAIN_S
        opening.start()

    def write(self, data: bytes) -> None:
        """Send bytes, once the holder has answered the hello; they are lost if the connection is."""
        if self._connection is not None and self._reply is not None:
            self._connection.write(self._reply, data)

    def _open(self, hello: bytes) -> None:
        try:
            self._connection = connection = self._connect()
            self._reply = connection.connect_socket(self._address, hello, lambda data: self._post("data", data))
        except AuthenticationError as error:
            self._pause_s = LOGIN_S
            self._post("lost", error.message)
        except ClusterfnError as error:
            self._post("gone", error.message)
        else:
            self._reply.add_done_callback(self._on_end)

    def _on_end(self, reply: Reply[None]) -> None:
        error = reply.exception()
        if isinstance(error, HostError) and error.kind in _GONE:
            self._post("gone", error.message)
        elif error is not None:
            self._post("lost", getattr(error, "message", repr(error)))
        else:
            self._post("lost", "the holder of the kernel closed the connection")
