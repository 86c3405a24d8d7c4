"""Read Jupyter's messages from the bytes of a ZeroMQ connection as they pass, without libzmq (ZMTP 3, no encryption).

https://rfc.zeromq.org/spec/23 describes the bytes, and https://jupyter-client.readthedocs.io/en/stable/messaging.html
the messages.
"""

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

GREETING_BYTES = 64
MORE, LONG, COMMAND = 1, 2, 4
# The messages that matter here are small; a longer part is a binary buffer.
_READ_UP_TO = 1 << 20
DELIMITER = b"<IDS|MSG>"
# Positions of the parts, counted from the delimiter.
_HEADER, _CONTENT = 2, 5


class MessageReader:
    """Splits what one side of a connection sends into messages, and each of them into its parts.

    A part that is longer than what matters here is empty.

    Args:
        take: Called with the parts of each message.
    """

    def __init__(self, take: "Callable[[List[bytes]], None]") -> None:
        self._take = take
        self._data = bytearray()
        # Bytes of the greeting that are still to come.
        self._greeting = GREETING_BYTES
        self._parts: "List[bytes]" = []

    def passed(self, data: bytes) -> bytes:
        """Read these bytes, and return them."""
        piece = min(self._greeting, len(data))
        self._greeting -= piece
        self._data += data[piece:]
        while len(self._data) >= 2:
            flags, size, start = self._data[0], self._data[1], 2
            if flags & LONG:
                start = 9
                size = int.from_bytes(self._data[1:start], "big")
            if len(self._data) < start + size:
                break
            if not flags & COMMAND:
                self._parts.append(bytes(self._data[start : start + size]) if size <= _READ_UP_TO else b"")
                if not flags & MORE:
                    parts, self._parts = self._parts, []
                    self._take(parts)
            del self._data[: start + size]
        return data


def request_of(parts: "List[bytes]") -> "Tuple[str, Dict[str, Any]]":
    """Return a message's type and content; ("", {}) for what is none that can be read."""
    try:
        start = parts.index(DELIMITER)
        header, content = (json.loads(parts[start + part].decode()) for part in (_HEADER, _CONTENT))
        return str(header["msg_type"]), content if isinstance(content, dict) else {}
    except (ValueError, KeyError, IndexError, TypeError):
        return "", {}
