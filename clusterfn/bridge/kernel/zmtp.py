"""Read Jupyter's messages from the bytes of a ZeroMQ connection as they pass, without libzmq (ZMTP 3, no encryption).

https://rfc.zeromq.org/spec/23 describes the bytes, and https://jupyter-client.readthedocs.io/en/stable/messaging.html
the messages. `OutputLimit` drops those that no client receives.
"""

import hashlib
import hmac
import json
import struct
import time
import uuid

from .carried import PassedBytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

GREETING_BYTES = 64
MORE, LONG, COMMAND = 1, 2, 4
# The requests that matter here are small; a longer part is a binary buffer.
_READ_UP_TO = 1 << 20
DELIMITER = b"<IDS|MSG>"
# Positions of the parts, counted from the delimiter.
_HEADER, _CONTENT = 2, 5


# The signature, version 3.0, the mechanism NULL, the role "not a server", and a filler.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)


def socket_ready(kind: bytes) -> bytes:
    """Return what follows the greeting of a socket of this kind, such as SUB."""
    name, value = b"Socket-Type", kind
    ready = b"\x05READY" + bytes([len(name)]) + name + struct.pack("!I", len(value)) + value
    return bytes([COMMAND, len(ready)]) + ready


def message(parts: "List[bytes]") -> bytes:
    """Return a message as it is sent."""
    last = len(parts) - 1
    return b"".join(
        struct.pack("!BQ", LONG | (MORE if n < last else 0), len(part)) + part for n, part in enumerate(parts)
    )


def signed_message(key: bytes, scheme: str, kind: str, parent: bytes, content: "Dict[str, Any]") -> "List[bytes]":
    """Return the parts of a message of Jupyter's, from the delimiter on.

    Args:
        key: With it the message is signed.
        scheme: As "hmac-sha256".
        kind: Such as "stream".
        parent: The header of the request that it answers, as JSON.
        content: What it says.
    """
    header = {
        "msg_id": uuid.uuid4().hex, "msg_type": kind, "username": "", "session": uuid.uuid4().hex,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "version": "5.3",
    }  # fmt: skip
    signed = [json.dumps(header).encode(), parent, b"{}", json.dumps(content).encode()]
    return [DELIMITER, signature(key, scheme, signed), *signed]


def signature(key: bytes, scheme: str, signed: "List[bytes]") -> bytes:
    """Return what signs these parts of a message."""
    digest = getattr(hashlib, scheme.partition("-")[2] or "sha256")
    return hmac.new(key, b"".join(signed), digest).hexdigest().encode()


def after_handshake(data: bytes) -> "Optional[bytes]":
    """Return what follows the greeting and the READY of one side; None as long as they are not complete."""
    if len(data) < GREETING_BYTES + 2:
        return None
    is_long = data[GREETING_BYTES] & LONG
    start = GREETING_BYTES + (9 if is_long else 2)
    size = int.from_bytes(data[GREETING_BYTES + 1 : start], "big")
    return data[start + size :] if len(data) >= start + size else None


class MessageReader:
    """Splits what one side of a connection sends into messages: the bytes of each, and its parts.

    The greeting and commands come as bytes without parts. A part that is longer than what matters here is empty.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        # Bytes of the greeting that are still to come.
        self._greeting = GREETING_BYTES
        # The parts of the message that is not complete, and where its next one begins.
        self._parts: "List[bytes]" = []
        self._next = 0

    def feed(self, data: bytes) -> "List[Tuple[bytes, List[bytes]]]":
        """Return the messages that are complete now."""
        self._data += data
        messages: "List[Tuple[bytes, List[bytes]]]" = []
        # The greeting is passed on in pieces, as either side waits for the other's first bytes.
        piece = min(self._greeting, len(self._data))
        if piece:
            self._greeting -= piece
            messages.append(self._cut(piece))
        while len(self._data) >= self._next + 2:
            flags, size = self._data[self._next], self._data[self._next + 1]
            start = self._next + 2
            if flags & LONG:
                start = self._next + 9
                size = int.from_bytes(self._data[self._next + 1 : start], "big")
            if len(self._data) < start + size:
                break
            self._next = start + size
            if not flags & COMMAND:
                self._parts.append(bytes(self._data[start : self._next]) if size <= _READ_UP_TO else b"")
            if not flags & MORE:
                messages.append(self._cut(self._next))
        return messages

    def _cut(self, size: int) -> "Tuple[bytes, List[bytes]]":
        message = bytes(self._data[:size]), self._parts
        del self._data[:size]
        self._parts, self._next = [], 0
        return message


def request_of(parts: "List[bytes]") -> "Tuple[str, Dict[str, Any]]":
    """Return a message's type and content; ("", {}) for what is none that can be read."""
    try:
        start = parts.index(DELIMITER)
        header, content = (json.loads(parts[start + part].decode()) for part in (_HEADER, _CONTENT))
        return str(header["msg_type"]), content if isinstance(content, dict) else {}
    except (ValueError, KeyError, IndexError, TypeError):
        return "", {}


_DROPPED = (b"stream.", b"display_data", b"update_display_data")
# The parts of a message are: topic, delimiter, signature, header, parent header, metadata, content.
_PARENT = 4


class OutputLimit(PassedBytes):
    """Passes on the bytes of one iopub connection, with a note in place of the messages that are dropped.

    A kernel may print for hours while its client is away. Output and displays beyond the limit are dropped; what
    clients rely on is not: status, results and errors. Without `idle` a cell would run for ever in the client.

    Args:
        key: With it the note about what was dropped is signed.
        scheme: As "hmac-sha256".
        note: Called with the parts of each message.
    """

    drops = True

    def __init__(self, key: str, scheme: str, note: "Callable[[List[bytes]], None]") -> None:
        self._key = key.encode()
        self._scheme = scheme
        self._note = note
        self._reader = MessageReader()
        self._dropped_bytes = 0
        self._parent = b"{}"

    def passed(self, data: bytes, is_full: bool) -> bytes:
        """Return what to send once these bytes have arrived: whole messages, and the note once there is room again.

        Args:
            is_full: Whether the limit is reached.
        """
        passed: "List[bytes]" = []
        for message, parts in self._reader.feed(data):
            self._note(parts)
            if is_full and parts and parts[0].startswith(_DROPPED):
                self._dropped_bytes += len(message)
                self._parent = parts[_PARENT] if len(parts) > _PARENT else self._parent
                continue
            if self._dropped_bytes and not is_full:
                passed.append(self._what_was_dropped())
            passed.append(message)
        return b"".join(passed)

    def _what_was_dropped(self) -> bytes:
        """Return a message of the kernel's stderr that says how much was dropped."""
        text = "\n[clusterfn: %d bytes of output were not kept for the client]\n" % self._dropped_bytes
        self._dropped_bytes = 0
        content = {"name": "stderr", "text": text}
        return message([b"stream.stderr", *signed_message(self._key, self._scheme, "stream", self._parent, content)])
