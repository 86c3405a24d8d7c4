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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

GREETING_BYTES = 64
MORE, LONG, COMMAND = 1, 2, 4
# The requests that matter here are small; a longer part is a binary buffer and is skipped.
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


def subscription(topic: bytes) -> bytes:
    """Return the message by which a SUB socket subscribes."""
    return bytes([0, len(topic) + 1]) + b"\x01" + topic


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
    """Splits what one side of a connection sends into messages, each a list of its parts; a large part is empty.

    Args:
        to_skip: Bytes before the first message.
    """

    def __init__(self, to_skip: int = GREETING_BYTES) -> None:
        self._data = bytearray()
        self._to_skip = to_skip
        self._parts: "List[bytes]" = []

    def feed(self, data: bytes) -> "List[List[bytes]]":
        """Return the messages that are complete now."""
        self._data += data
        messages: "List[List[bytes]]" = []
        while True:
            skipped = min(self._to_skip, len(self._data))
            del self._data[:skipped]
            self._to_skip -= skipped
            part = None if self._to_skip else self._next_part()
            if part is None:
                return messages
            flags, body = part
            if flags & COMMAND:
                continue
            self._parts.append(body)
            if not flags & MORE:
                messages.append(self._parts)
                self._parts = []

    def _next_part(self) -> "Optional[Tuple[int, bytes]]":
        if len(self._data) < 2:
            return None
        flags, start = self._data[0], 2
        size = self._data[1]
        if flags & LONG:
            start = 9
            if len(self._data) < start:
                return None
            size = int.from_bytes(self._data[1:start], "big")
        if size > _READ_UP_TO:
            del self._data[:start]
            self._to_skip = size
            return flags, b""
        if len(self._data) < start + size:
            return None
        body = bytes(self._data[start : start + size])
        del self._data[: start + size]
        return flags, body


def request_of(parts: "List[bytes]") -> "Tuple[str, Dict[str, Any]]":
    """Return a message's type and content; ("", {}) for what is none that can be read."""
    try:
        start = parts.index(DELIMITER)
        header, content = (json.loads(parts[start + part].decode()) for part in (_HEADER, _CONTENT))
        return str(header["msg_type"]), content if isinstance(content, dict) else {}
    except (ValueError, KeyError, IndexError, TypeError):
        return "", {}


_DROPPED = (b"stream.", b"display_data", b"update_display_data")
_LONGEST_TOPIC = 255
# The parts of a message are: topic, delimiter, signature, header, parent header, metadata, content.
_PARENT = 4


class OutputLimit:
    """Passes on the bytes of one iopub connection, with a note in place of the messages that are dropped.

    A kernel may print for hours while its client is away. Output and displays beyond the limit are dropped; what
    clients rely on is not: status, results and errors. Without `idle` a cell would run for ever in the client.

    Args:
        key: With it the note about what was dropped is signed.
        scheme: As "hmac-sha256".
    """

    def __init__(self, key: str, scheme: str) -> None:
        self._key = key.encode()
        self._scheme = scheme
        # The beginning of a frame of which too little has arrived to judge it.
        self._data = bytearray()
        # Bytes of the current frame that are still to come. The greeting counts as the first frame.
        self._left = GREETING_BYTES
        self._is_first, self._is_last, self._is_dropping = True, False, False
        self._dropped = MessageReader(0)
        self._dropped_bytes = 0
        self._parent = b"{}"

    def passed(self, data: bytes, is_full: bool) -> bytes:
        """Return what to send of these bytes, and the note once there is room again.

        Args:
            is_full: Whether the limit is reached: messages that begin now may be dropped.
        """
        self._data += data
        passed: "List[bytes]" = []
        while True:
            if self._left:
                if not self._data:
                    break
                self._take(min(self._left, len(self._data)), passed)
            elif not self._begin_frame(is_full, passed):
                break
        return b"".join(passed)

    def _begin_frame(self, is_full: bool, passed: "List[bytes]") -> bool:
        """Judge the next frame; False as long as too little of it is there."""
        if self._is_first and self._dropped_bytes and not is_full:
            passed.append(self._note())
        if len(self._data) < 2 or (self._data[0] & LONG and len(self._data) < 9):
            return False
        flags, start = self._data[0], 9 if self._data[0] & LONG else 2
        size = int.from_bytes(self._data[1:9], "big") if flags & LONG else self._data[1]
        if self._is_first and is_full and not flags & COMMAND and size <= _LONGEST_TOPIC:
            if len(self._data) < start + size:
                return False
            self._is_dropping = bytes(self._data[start : start + size]).startswith(_DROPPED)
        if not flags & COMMAND:
            self._is_first = self._is_last = not flags & MORE
        self._left = start + size
        return True

    def _take(self, size: int, passed: "List[bytes]") -> None:
        piece = bytes(self._data[:size])
        del self._data[:size]
        self._left -= size
        if not self._is_dropping:
            passed.append(piece)
            return
        self._dropped_bytes += size
        for parts in self._dropped.feed(piece):
            if len(parts) > _PARENT:
                self._parent = parts[_PARENT]
        if self._is_last and not self._left:
            self._is_dropping = False

    def _note(self) -> bytes:
        """Return a message of the kernel's stderr that says how much was dropped."""
        text = "\n[clusterfn: %d bytes of output were not kept for the client]\n" % self._dropped_bytes
        self._dropped_bytes = 0
        content = {"name": "stderr", "text": text}
        return message([b"stream.stderr", *signed_message(self._key, self._scheme, "stream", self._parent, content)])
