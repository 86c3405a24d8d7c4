"""Answer a Jupyter client while the job of its kernel waits, so that the notebook shows what it waits for.

A client shows nothing and sends no cell before a kernel has answered. Until the kernel listens, this process answers
on the client's own connections, by ZMTP. The kernel gets the same bytes later, so it also answers; of what it says on
such a connection, only the handshake is left out.
"""

from __future__ import annotations

import hmac
import json
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.kernel import zmtp
from clusterfn.bridge.kernel.carried import PassedBytes
from clusterfn.bridge.kernel.stream import CONTROL, DATA, IOPUB, SHELL
from clusterfn.bridge.kernel.zmtp import GREETING_BYTES, MessageReader
from clusterfn.display.console import as_clock
from clusterfn.hosts.spoken_wait import REASON_AFTER_S

if TYPE_CHECKING:
    from clusterfn.bridge.kernel.stream import Frame

# The types of the sockets, by the channels that are answered here.
_SOCKETS = {SHELL: b"ROUTER", CONTROL: b"ROUTER", IOPUB: b"PUB"}
# The signature covers so many parts of a message, which follow it.
_SIGNED = 4
_CLOCK_S = 5.0
_KERNEL_INFO = {
    "status": "ok", "protocol_version": "5.3", "implementation": "clusterfn", "implementation_version": "",
    "banner": "The job of this kernel waits.", "help_links": [],
    "language_info": {
        "name": "python", "version": "3", "mimetype": "text/x-python", "file_extension": ".py",
        "pygments_lexer": "ipython3", "codemirror_mode": {"name": "ipython", "version": 3},
        "nbconvert_exporter": "python",
    },
}  # fmt: skip


class WaitingConnection(PassedBytes):
    """One connection of the client, whose bytes pass here.

    Attributes:
        received: How many bytes the client has sent.
        for_kernel: What the kernel has not got of them: libzmq stalls if all comes before it has greeted.
        is_through: Whether the kernel gets all at once.
        kernel_said: What has come from the kernel, as long as its handshake is not complete.
    """

    def __init__(self, channel: int, answer: Callable[[bytes], None]) -> None:
        self.channel = channel
        self._answer = answer
        self.reader = MessageReader()
        self.received = 0
        self.is_greeted = self.is_ready = self.is_through = False
        self.for_kernel = self.kernel_said = b""

    def passed(self, data: bytes, _is_full: bool) -> bytes:
        """Take what the client has sent; return what the kernel gets at once."""
        room = max(0, GREETING_BYTES - self.received)
        self.received += len(data)
        self._answer(data)
        if self.is_through:
            return data
        self.for_kernel += data[room:]
        return data[:room]


class WaitingKernel:
    """Speaks for a kernel whose job has not started.

    Args:
        key: The client's, with which messages are signed, and how.
        to_client: Sends bytes to the client on a connection, by its number.
        to_kernel: Sends to the kernel what it has not got of a connection.
    """

    def __init__(
        self, key: tuple[str, str], to_client: Callable[[int, bytes], None], to_kernel: Callable[[int, bytes], None]
    ) -> None:
        self._key, self._scheme = key[0].encode(), key[1]
        self._to_client, self._to_kernel = to_client, to_kernel
        self._since = self._shown_at = time.monotonic()
        self._connections: dict[int, WaitingConnection] = {}
        # The waiting cells: the header of each request, and the id of the text that is displayed below the cell.
        self._cells: list[tuple[bytes, str]] = []
        self._text = ""
        self._speaks = self._is_over = False

    def accept(self, number: int, channel: int) -> WaitingConnection | None:
        """Take note of a connection of the client; return what sees its bytes, None for nothing."""
        if channel not in _SOCKETS or self._is_over:
            return None
        self._connections[number] = made = WaitingConnection(channel, lambda data: self._take(number, data))
        self._answer_handshake(number)
        return made

    def _take(self, number: int, data: bytes) -> None:
        connection = self._connections.get(number)
        if connection is not None and not self._is_over:
            self._answer_handshake(number)
            for _, parts in connection.reader.feed(data):
                self._answer(number, parts)

    def say(self, text: str) -> None:
        """Show in each cell that waits what the kernel waits for."""
        self._text = text
        if self._speaks and not self._is_over:
            self._show()

    def look(self) -> None:
        """Begin to answer after some seconds, and keep the clock in the cells going: call it every second or so."""
        now = time.monotonic()
        if self._is_over or now < self._since + REASON_AFTER_S:
            return
        if not self._speaks:
            self._speaks = True
            for number in list(self._connections):
                self._answer_handshake(number)
        elif now >= self._shown_at + _CLOCK_S:
            self._show()

    def end(self, why_not: str = "") -> None:
        """Answer no more: the kernel does from now on, and cells that have waited show only its output.

        Args:
            why_not: Why there will be no kernel, which they show instead.
        """
        if self._is_over:
            return
        self._is_over, self._text = True, why_not
        if why_not:
            self._show()
            return
        for header, _ in self._cells:
            self._publish(header, "clear_output", wait=False)

    def without_handshake(self, frame: Frame) -> Frame:
        """Return what came from the kernel without a handshake that the client has had from here."""
        connection = self._connections.get(frame.connection)
        if frame.kind != DATA or connection is None:
            return frame
        if not connection.is_greeted:
            connection.is_through = True
            del self._connections[frame.connection]
            return frame
        connection.kernel_said += frame.body
        if len(connection.kernel_said) >= GREETING_BYTES and not connection.is_through:
            connection.is_through = True
            self._to_kernel(frame.connection, connection.for_kernel)
        body = zmtp.after_handshake(connection.kernel_said)
        if body is not None:
            del self._connections[frame.connection]
        return frame._replace(body=body or b"")

    def _answer_handshake(self, number: int) -> None:
        connection = self._connections[number]
        if self._speaks and not connection.is_greeted:
            connection.is_greeted = True
            self._to_client(number, zmtp.GREETING)
        if connection.is_greeted and not connection.is_ready and connection.received >= GREETING_BYTES:
            # libzmq stalls if the READY command comes together with the greeting.
            connection.is_ready = True
            self._to_client(number, zmtp.socket_ready(_SOCKETS[connection.channel]))

    def _answer(self, number: int, parts: list[bytes]) -> None:
        # What has no delimiter is a part of the handshake or a subscription, which needs no answer.
        if zmtp.DELIMITER not in parts:
            return
        start = parts.index(zmtp.DELIMITER) + 1
        signed = parts[start + 1 : start + 1 + _SIGNED]
        is_whole = len(signed) == _SIGNED
        if not is_whole or not hmac.compare_digest(zmtp.signature(self._key, self._scheme, signed), parts[start]):
            return
        header, content = json.loads(signed[0]), json.loads(signed[-1])
        if header["msg_type"] == "kernel_info_request":
            self._publish(signed[0], "status", execution_state="busy")
            self._to_client(number, zmtp.message(self._signed("kernel_info_reply", signed[0], _KERNEL_INFO)))
            self._publish(signed[0], "status", execution_state="idle")
        elif header["msg_type"] == "execute_request":
            # The cell stays busy until the kernel has run it and says so itself.
            self._publish(signed[0], "status", execution_state="busy")
            if not content.get("silent"):
                self._cells.append((signed[0], uuid.uuid4().hex))
                self._publish(signed[0], "display_data", **self._display(self._cells[-1][1]))

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        for header, display in self._cells:
            self._publish(header, "update_display_data", **self._display(display))

    def _display(self, name: str) -> dict[str, Any]:
        waited = as_clock(time.monotonic() - self._since)
        text = f"clusterfn: {self._text or 'the kernel is being started'} ({waited})"
        return {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": name}}

    def _publish(self, parent: bytes, kind: str, **content: Any) -> None:
        parts = zmtp.message([kind.encode(), *self._signed(kind, parent, content)])
        for number, connection in list(self._connections.items()):
            if connection.channel == IOPUB and connection.is_ready:
                self._to_client(number, parts)

    def _signed(self, kind: str, parent: bytes, content: dict[str, Any]) -> list[bytes]:
        return zmtp.signed_message(self._key, self._scheme, kind, parent, content)
