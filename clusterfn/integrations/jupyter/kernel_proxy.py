"""The process that a Jupyter client takes for its kernel: it carries the client's connections to the kernel's holder.

A client interrupts it by SIGINT, and ends it by SIGTERM. To shut the kernel down in order, it sends a message, which
the holder obeys.

A client shows nothing and sends no cell before a kernel has answered. Until the kernel listens, this process answers
on the client's own connections, by ZMTP. The kernel gets the same bytes later, so it also answers; of what it says on
such a connection, only the handshake is left out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clusterfn.bridge.kernel.stream import (
    COMMAND,
    CONTROL,
    DATA,
    DELIMITER,
    GREETING_BYTES,
    IOPUB,
    LONG,
    MORE,
    SHELL,
    MessageReader,
)
from clusterfn.display import console
from clusterfn.hosts.spoken_wait import REASON_AFTER_S
from clusterfn.integrations.jupyter.near_end import NearEnd

if TYPE_CHECKING:
    from clusterfn.bridge.kernel.stream import Frame
    from clusterfn.integrations.jupyter.jupyter_files import ConnectionFile
    from clusterfn.integrations.jupyter.kernel_job import JobSearch


def kernel_proxy(
    connection_file: ConnectionFile,
    listeners: Mapping[int, socket.socket],
    search: JobSearch,
    report: Callable[[str], None] = console.warn,
) -> NearEnd:
    """Return what serves the client of a kernel."""
    key = connection_file.key, connection_file.signature_scheme
    proxy = NearEnd("the kernel", listeners, search.run, report, key)
    proxy.on_sigint = "interrupt"
    proxy.last_word = "orphan"
    proxy.withdraw, proxy.record = search.withdraw, search.record
    proxy.waiting = WaitingKernel(key, proxy.deliver, proxy.send_data)
    return proxy


def run_proxy(connection_file: ConnectionFile, listeners: Mapping[int, socket.socket], search: JobSearch) -> int:
    """Serve a Jupyter client; return the exit code."""
    proxy = kernel_proxy(connection_file, listeners, search)
    console.show_also(lambda text: proxy.events.post("said", text))
    code = proxy.run()
    proxy.flush()
    return code


# The types of the sockets, by the channels that are answered here.
_SOCKETS = {SHELL: b"ROUTER", CONTROL: b"ROUTER", IOPUB: b"PUB"}
# The signature covers so many parts of a message, which follow it.
_SIGNED = 4
_LANGUAGE = {
    "name": "python",
    "version": "3",
    "mimetype": "text/x-python",
    "file_extension": ".py",
    "pygments_lexer": "ipython3",
    "codemirror_mode": {"name": "ipython", "version": 3},
    "nbconvert_exporter": "python",
}
_KERNEL_INFO = {
    "status": "ok",
    "protocol_version": "5.3",
    "implementation": "clusterfn",
    "implementation_version": "",
    "banner": "The job of this kernel waits.",
    "help_links": [],
    "language_info": _LANGUAGE,
}


class WaitingConnection:
    """One connection of the client, whose bytes pass here.

    Attributes:
        received: How many bytes the client has sent.
        for_kernel: What the kernel has not got of them: libzmq stalls if all comes before it has greeted.
        is_through: Whether the kernel gets all at once.
        kernel_said: What has come from the kernel, as long as its handshake is not complete.
    """

    def __init__(self, channel: int, received: Callable[[], None], answer: Callable[[list[bytes]], None]) -> None:
        self.channel = channel
        self._on_bytes = received
        self._reader = MessageReader(answer)
        self.received = 0
        self.is_greeted = self.is_ready = self.is_through = False
        self.for_kernel = self.kernel_said = b""

    def passed(self, data: bytes) -> bytes:
        """Take what the client has sent; return what the kernel gets at once."""
        room = max(0, GREETING_BYTES - self.received)
        self.received += len(data)
        self._on_bytes()
        self._reader.passed(data)
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
        self._since = time.monotonic()
        self._connections: dict[int, WaitingConnection] = {}
        # The waiting cells: the header of each request, and the id of the text that is displayed below the cell.
        self._cells: list[tuple[bytes, str]] = []
        self._text = ""
        self._speaks = self._is_over = False

    def accept(self, number: int, channel: int) -> Callable[[bytes], bytes] | None:
        """Take note of a connection of the client; return what its bytes pass, None for nothing."""
        if channel not in _SOCKETS or self._is_over:
            return None
        made = WaitingConnection(
            channel, lambda: self._answer_handshake(number), lambda parts: self._answer(number, parts)
        )
        self._connections[number] = made
        self._answer_handshake(number)
        return made.passed

    def show(self, text: str) -> None:
        """Show in each cell that waits what the kernel waits for."""
        self._text = text
        if self._speaks and not self._is_over:
            self._show()

    def look(self) -> None:
        """Begin to answer after some seconds: call it every second or so."""
        if not (self._is_over or self._speaks) and time.monotonic() >= self._since + REASON_AFTER_S:
            self._speaks = True
            for number in list(self._connections):
                self._answer_handshake(number)

    def end(self, why_not: str = "") -> None:
        """Answer no more: the kernel does from now on, and cells that have waited show only its output.

        Args:
            why_not: Why there will be no kernel, which they show instead.
        """
        if self._is_over:
            return
        self._is_over = True
        self._text = why_not
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
        body = after_handshake(connection.kernel_said)
        if body is not None:
            del self._connections[frame.connection]
        return frame._replace(body=body or b"")

    def _answer_handshake(self, number: int) -> None:
        connection = self._connections.get(number)
        if connection is None or self._is_over:
            return
        if self._speaks and not connection.is_greeted:
            connection.is_greeted = True
            self._to_client(number, GREETING)
        if connection.is_greeted and not connection.is_ready and connection.received >= GREETING_BYTES:
            # libzmq stalls if the READY command comes together with the greeting.
            connection.is_ready = True
            self._to_client(number, socket_ready(_SOCKETS[connection.channel]))

    def _answer(self, number: int, parts: list[bytes]) -> None:
        # What has no delimiter is a subscription, which needs no answer.
        if DELIMITER not in parts or self._is_over or number not in self._connections:
            return
        start = parts.index(DELIMITER) + 1
        signed = parts[start + 1 : start + 1 + _SIGNED]
        is_whole = len(signed) == _SIGNED
        if not is_whole or not hmac.compare_digest(signature(self._key, self._scheme, signed), parts[start]):
            return
        header, content = json.loads(signed[0]), json.loads(signed[-1])
        if header["msg_type"] == "kernel_info_request":
            self._publish(signed[0], "status", execution_state="busy")
            self._to_client(number, message(self._signed("kernel_info_reply", signed[0], _KERNEL_INFO)))
            self._publish(signed[0], "status", execution_state="idle")
        elif header["msg_type"] == "execute_request":
            # The cell stays busy until the kernel has run it and says so itself.
            self._publish(signed[0], "status", execution_state="busy")
            if not content.get("silent"):
                self._cells.append((signed[0], uuid.uuid4().hex))
                self._publish(signed[0], "display_data", **self._display(self._cells[-1][1]))

    def _show(self) -> None:
        for header, display in self._cells:
            self._publish(header, "update_display_data", **self._display(display))

    def _display(self, name: str) -> dict[str, Any]:
        text = f"clusterfn: {self._text or 'the kernel is being started'}"
        return {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": name}}

    def _publish(self, parent: bytes, kind: str, **content: Any) -> None:
        parts = message([kind.encode(), *self._signed(kind, parent, content)])
        for number, connection in list(self._connections.items()):
            if connection.channel == IOPUB and connection.is_ready:
                self._to_client(number, parts)

    def _signed(self, kind: str, parent: bytes, content: dict[str, Any]) -> list[bytes]:
        return signed_message(self._key, self._scheme, kind, parent, content)


# The signature, version 3.0, the mechanism NULL, the role "not a server", and a filler.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)


def socket_ready(kind: bytes) -> bytes:
    """Return what follows the greeting of a socket of this kind, such as SUB."""
    name, value = b"Socket-Type", kind
    ready = b"\x05READY" + bytes([len(name)]) + name + struct.pack("!I", len(value)) + value
    return bytes([COMMAND, len(ready)]) + ready


def message(parts: list[bytes]) -> bytes:
    """Return a message as it is sent."""
    last = len(parts) - 1
    return b"".join(
        struct.pack("!BQ", LONG | (MORE if n < last else 0), len(part)) + part for n, part in enumerate(parts)
    )


def signed_message(key: bytes, scheme: str, kind: str, parent: bytes, content: dict[str, Any]) -> list[bytes]:
    """Return the parts of a message of Jupyter's, from the delimiter on.

    Args:
        key: With it the message is signed.
        scheme: As "hmac-sha256".
        kind: Such as "stream".
        parent: The header of the request that it answers, as JSON.
        content: What it says.
    """
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "username": "", "session": uuid.uuid4().hex}
    header.update(date=date, version="5.3")
    signed = [json.dumps(header).encode(), parent, b"{}", json.dumps(content).encode()]
    return [DELIMITER, signature(key, scheme, signed), *signed]


def signature(key: bytes, scheme: str, signed: list[bytes]) -> bytes:
    """Return what signs these parts of a message."""
    digest = getattr(hashlib, scheme.partition("-")[2] or "sha256")
    return hmac.new(key, b"".join(signed), digest).hexdigest().encode()


def after_handshake(data: bytes) -> bytes | None:
    """Return what follows the greeting and the READY of one side; None as long as they are not complete."""
    if len(data) < GREETING_BYTES + 2:
        return None
    is_long = data[GREETING_BYTES] & LONG
    start = GREETING_BYTES + (9 if is_long else 2)
    size = int.from_bytes(data[GREETING_BYTES + 1 : start], "big")
    return data[start + size :] if len(data) >= start + size else None
